"""The parts of a job that its command and the submitting shell give: its name, its user, its environment."""

import os
import pwd
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

import click

LEFT = re.compile(
    r"_|PWD|OLDPWD|SHLVL|LS_COLORS|(BASH_FUNC|SSH|DBUS|XDG_SESSION)_.*|(HPCDL|SLURM|LSB|PMI|PMIX|OMPI)_.*"
)
"""Names of the submitting shell, its session or a batch step: they mean nothing to the job, or the wrong thing."""
SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|(API|ACCESS|PRIVATE)_?KEY|(^|_)(KEY|PASS|PASSPHRASE|PAT|DATABASE_URL)$",
    re.IGNORECASE,
)
"""Names that are never taken along by themselves, for what they hold would go into the ledger. docs/commands.md and the
help of `hpcdl submit` list them."""
_THREADS = "OMP_NUM_THREADS"


def user_name() -> str:
    """Whose job it is; the number of a user without a name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def default_name(command: Sequence[str]) -> str:
    """The basename of the script that is run, else of the module (`-m`), else of the program."""
    after_module = False
    module = ""
    chosen = ""
    for part in command:
        if part.endswith((".py", ".sh")):
            chosen = os.path.basename(part)
            break
        if after_module and not module:
            module = part
        after_module = part == "-m"
    text = chosen or module or os.path.basename(command[0]) or command[0]
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def runs_gate(command: Sequence[str]) -> bool:
    """Whether the command is a script behind `python -m hpcdl.trainer.gate`, so that it may be started ahead."""
    return any(pair == ("-m", "hpcdl.trainer.gate") for pair in pairwise(command))


def environment(
    given: Sequence[str], around: Mapping[str, str], *, every: bool = True, left: Collection[str] = ()
) -> dict[str, str]:
    """The job's own variables: those of `around` that mean something to it, then `K=V` and `K` as given.

    Not `every`: only those given. `left`: names that are not taken by themselves. Raises click.UsageError.
    """
    kept = {}
    if every:
        kept = {
            name: value
            for name, value in around.items()
            if not LEFT.fullmatch(name) and not SECRET.search(name) and name not in left
        }
        if kept.get(_THREADS, "") == around.get(f"HPCDL_{_THREADS}"):  # a job that submits: its own share was no choice
            del kept[_THREADS]
    for entry in given:
        name, equals, value = entry.partition("=")
        if not name:
            raise click.BadParameter(f"{entry!r} has no name: write K=V or K", param_hint="'--env'")
        if not equals:
            if name not in around:
                raise click.BadParameter(f"{name} is not set here: write {name}=VALUE", param_hint="'--env'")
            value = around[name]
        kept[name] = value
    return kept
