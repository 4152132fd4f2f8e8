"""Commands of batch systems that scripts call about their own job: its id is hpcdl's, and may be somebody's there.

`scontrol show hostnames` is answered here. sbatch and bsub that wait for a job ask hpcdl whose it is, and the next link
of a chain goes there. Of all others, what names the own id is refused in one line, or done where hpcdl can; what does
not goes to the next command of that name in PATH.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdl.agent.steps.layout import BadStep
from hpcdl.agent.steps.script import REQUEUE
from hpcdl.agent.steps.step import reachable, run_folder
from hpcdl.batch.system import systems
from hpcdl.core.model.units import expand_nodes, fold_nodes

INSTEAD = {
    "scancel": "hpcdl cancel {}",
    "bkill": "hpcdl cancel {}",
    "squeue": "hpcdl show {}",
    "sacct": "hpcdl show {}",
    "sstat": "hpcdl show {}",
    "bjobs": "hpcdl show {}",
    "scontrol": "hpcdl show {}",
    "sattach": "hpcdl logs --follow {}",
    "bpeek": "hpcdl logs {}",
    "bhist": "hpcdl show {}",
    "bmod": "hpcdl show {}",
    "bstop": "hpcdl suspend {}",
    "bresume": "hpcdl resume {}",
    "brequeue": "hpcdl show {}",
    "bwait": "hpcdl wait {}",
}
CANCELS = frozenset({"scancel", "bkill"})
QUIET = frozenset({"-Q", "--quiet", "-v", "--verbose"})
COPIES = "sbcast"


def knows(name: str) -> bool:
    """Whether `main` answers for a command of this name."""
    return name in INSTEAD or name == COPIES or _submits(name)


def _submits(name: str) -> bool:
    return any(system.submit_name == name for system in systems())


def main(name: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code; or this process becomes the real command. Raises BadStep."""
    if _submits(name):
        return _submit(name, words, environ)
    if name == COPIES and not any(word.startswith(("-j", "--jobid")) for word in words):
        raise BadStep("hpcdl copies no files to nodes: srun --ntasks-per-node=1 cp FILE DESTINATION")
    job = environ.get("SLURM_JOB_ID") or environ.get("LSB_JOBID") or ""
    plain = [word for word in words if not word.startswith("-")]
    if name == "scontrol" and plain[:1] == ["show"] and len(plain) > 1 and plain[1].lower().startswith("host"):
        sys.stdout.write(_hosts(plain[1].lower(), plain[2:], environ))
        return 0
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    ids = "|".join(re.escape(each) for each in (job, array) if each)
    own = ids != "" and any(re.fullmatch(rf"(?:.*[=,(])?(?:{ids})(?:[_.\[,)].*)?", word) for word in words)
    asks = plain[1:] if name == "scontrol" and plain[:1] == ["requeue"] else plain if name == "brequeue" else []
    if asks in ([job], [f"{array}_{task}"]):
        (run_folder(environ) / REQUEUE).touch()
        return 0
    if name in CANCELS and plain in ([job], [f"{array}_{task}"]) and QUIET.issuperset({*words} - {*plain}):
        return _hpcdl("cancel", environ["HPCDL_JOB"])
    if own:
        raise BadStep(f"job {job} is hpcdl's, which the batch system does not know: {INSTEAD[name].format(job)}")
    return _become(name, words, environ)


def _hosts(what: str, words: Sequence[str], environ: Mapping[str, str]) -> str:
    """What `scontrol show hostnames [LIST]` prints, or `hostlist NAMES`."""
    if what.startswith("hostl"):
        return fold_nodes(expand_nodes(",".join(" ".join(words).split()))) + "\n"
    listed = expand_nodes(words[0] if words else environ.get("SLURM_JOB_NODELIST", ""))
    return "".join(f"{reachable(each, environ)}\n" for each in listed)


def _submit(name: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Have hpcdl see whose the jobs are that a batch job waits for; one that waits for none is the next command's."""
    from hpcdl.batch.script import command_named, text_of  # not for each step

    command = command_named(name)
    if environ.get("HPCDL_BYPASS") or command.dependency(words, environ, text_of(command.script_in(words))) is None:
        return _become(name, words, environ)
    other = _next(name, environ)
    return _hpcdl("submit", "--as", name, *(("--else", other) if other else ()), "--", *words)


def _hpcdl(*words: str) -> int:
    """The exit code of a command of hpcdl's; or it ends this process."""
    sys.argv = ["hpcdl", *words]
    runpy.run_module("hpcdl", run_name="__main__", alter_sys=True)
    return 0


def _next(name: str, environ: Mapping[str, str]) -> str | None:
    """The next command of that name in PATH that is no stub; None where there is none."""
    folders = [
        folder
        for folder in environ.get("PATH", os.defpath).split(os.pathsep)
        if not (Path(folder or ".") / "hpcdl-stubs").exists()
    ]
    return shutil.which(name, path=os.pathsep.join(folders))


def _become(name: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Become the next command of that name; a shell's exit code where there is none."""
    found = _next(name, environ)
    if found is not None:
        os.execv(found, [found, *words])
    sys.stderr.write(f"{name}: command not found\n")
    return 127
