"""`hpcdl submit --as sbatch`: the command line of sbatch or bsub, for the wrappers in jobscripts/.

A job goes to hpcdl where a daemon answers, the job asks for GPUs, and nothing that it asks for would be lost but what
hpcdl decides itself. Any other goes to the batch system, with the same arguments and the same standard input.
"""

import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from hpcdl.cli import dependencies, lsflines, slurmlines
from hpcdl.cli.batchlines import BadLine
from hpcdl.cli.batchscript import LIMIT, Batch, find, read, text_of
from hpcdl.cli.output import say
from hpcdl.client import Client

NOT_OURS = 75  # EX_TEMPFAIL: nothing was done
QUIET = "HPCDL_QUIET"
"""The variable that silences what is said of where a job goes."""
_LINE = "the command line"
_SHELL = re.compile(r"[^A-Za-z0-9_@%+=:,./-]")
"""What bsub's shell would take for more than a letter."""
_HARMLESS = re.compile(r"SBATCH_(ACCOUNT|PARTITION|QOS|TIMELIMIT|DEBUG|REQUEUE|NO_REQUEUE)")
"""Variables that stand for options which hpcdl may leave out."""
_HPCDL = re.compile(
    r"""^[^#\n]*(?:\bhpcdl["'}]*\s(?:.*\s)?(?:allocation|daemon|agent)\b|\bhpcdl\.(?:allocation|daemon|agent)\b)""",
    re.MULTILINE,
)
"""A script that is hpcdl's own allocation, or a pilot's."""


class NotOurs(BadLine):
    """The job is the batch system's; the message says why."""


def batch_of(name: str, words: tuple[str, ...], around: Mapping[str, str]) -> Batch:
    """What `sbatch WORDS` or `bsub WORDS` would submit. Raises NotOurs."""
    try:
        batch = _of_sbatch(words, around) if name == "sbatch" else _of_bsub(words, around)
    except BadLine as error:
        raise NotOurs(str(error)) from None  # the batch system says it in its own words
    if not batch.asked.gpus:
        raise NotOurs("it asks for no GPU")
    if _HPCDL.search(text_of(batch.content or b"")):
        raise NotOurs("it runs hpcdl itself")
    for each in batch.asked.ignored:
        if each.doubt:
            raise NotOurs(str(each))
    return batch


def _of_sbatch(words: tuple[str, ...], around: Mapping[str, str]) -> Batch:
    odd = [name for name in around if name.startswith("SBATCH_") and not _HARMLESS.fullmatch(name)]
    if odd:
        raise NotOurs(f"{odd[0]} is set")
    given, rest = slurmlines.split_options(words, _LINE)
    wrapped = slurmlines.asked_of(given).wrapped
    if wrapped is not None:
        if rest:
            raise NotOurs("--wrap and a script")
        return read("slurm", "wrap", f"#!/bin/sh\n{wrapped}\n".encode("utf-8", "surrogateescape"), (), tuple(given))
    if rest:
        content = _file(rest[0])
        file, arguments = rest[0], tuple(rest[1:])
    else:
        content, file, arguments = _stdin(), "sbatch", ()
    if not content.startswith(b"#!"):
        raise NotOurs("it is no script")
    return read("slurm", file, content, arguments, tuple(given))


def _of_bsub(words: tuple[str, ...], around: Mapping[str, str]) -> Batch:
    if "LSB_BSUB_PARSE_SCRIPT" in around:
        raise NotOurs("LSB_BSUB_PARSE_SCRIPT is set")
    given, rest = lsflines.split_options(words, _LINE)
    if not rest:
        return read("lsf", "bsub", _stdin(), (), tuple(given))
    if any(_SHELL.search(word) for word in rest) or "=" in rest[0]:
        raise NotOurs("its command is a shell's")
    if find(rest[0]) is not None:
        raise NotOurs(
            "whether bsub reads the lines of a script that it is not given on standard input is its own affair"
        )
    return Batch("lsf", lsflines.asked_of(given), rest[0], tuple(rest))


def _file(word: str) -> bytes:
    try:
        with open(word, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotOurs(f"{word} is no file")
            content = file.read(LIMIT + 1)
    except (OSError, ValueError) as error:
        raise NotOurs(f"{word}: {error}") from None
    if len(content) > LIMIT:
        raise NotOurs(f"{word} is too large")
    return content


def _stdin() -> bytes:
    """The script on standard input, which can be read again after this, by the batch system's command."""
    try:
        if os.isatty(0):
            raise NotOurs("the script is typed in")
        if not stat.S_ISREG(os.fstat(0).st_mode):
            import shutil
            import tempfile

            kept = tempfile.TemporaryFile()  # noqa: SIM115  (stays open as descriptor 0)
            with os.fdopen(os.dup(0), "rb") as pipe:
                shutil.copyfileobj(pipe, kept)
            kept.flush()
            os.lseek(kept.fileno(), 0, os.SEEK_SET)
            os.dup2(kept.fileno(), 0)
        content = os.pread(0, LIMIT + 1, os.lseek(0, 0, os.SEEK_CUR))
    except OSError as error:
        raise NotOurs(f"standard input: {error}") from None
    if len(content) > LIMIT:
        raise NotOurs("the script is too large")
    return content


def waiting_for(client: Client, name: str, other: str | None, batch: Batch) -> Batch:
    """The same job, waiting for all members of the arrays that it names.

    Raises NotOurs where none of the jobs is hpcdl's, click.ClickException where one is not, or is also the batch
    system's, and ClientError.
    """
    if not batch.asked.after:
        return batch
    said = f"job {', '.join(map(str, batch.asked.after))} to wait for"
    after = dependencies.checked(client, name, said, batch.asked.after, other)
    if after is None:
        raise NotOurs(f"hpcdl knows no job {batch.asked.after[0]} to wait for")
    return replace(batch, asked=replace(batch.asked, after=after))


def pass_on(name: str, other: str | None, words: tuple[str, ...], why: str, home: Path) -> NoReturn:
    """Become the batch system's command, and say why; without one exit with NOT_OURS.

    Raises click.ClickException where the job waits for one of hpcdl's, of which the batch system knows nothing.
    """
    why = why.removeprefix("refused by --strict: ").partition(": it waits for ")[0]
    found = dependencies.dependency_of(name, words, os.environ, _script(name, words))
    if found is not None:
        dependencies.guard(home, name, found, why, other)
    if other is None:
        say(f"not for hpcdl: {why}: {name} takes it")
        raise click.exceptions.Exit(NOT_OURS)
    if os.environ.get("HPCDL_WRAPPED", ":1").endswith(":1"):  # else it was said
        note(f"{other} takes this job: {why}")
    sys.stdout.flush()
    os.execv(other, [other, *words])


def note(text: str) -> None:
    """A line on stderr about where a job goes, unless its user wants none."""
    if not os.environ.get(QUIET):
        say(text)


def _script(name: str, words: tuple[str, ...]) -> bytes | None:
    """The script that the batch system would read, as far as it can be read here."""
    try:
        given, rest = dependencies.split_line(name, words)
        if any(each.name == "wrap" for each in given):
            return None
        if not rest:
            return _stdin()
        return _file(rest[0] if os.path.exists(rest[0]) else shutil.which(rest[0]) or rest[0])
    except BadLine:
        return None


def tell(batch: Batch, number: int) -> None:
    """The batch system's words on stdout, for scripts that read the id; on stderr, where the job went."""
    if batch.system == "lsf":
        click.echo(f"Job <{number}> is submitted to queue <hpcdl>.")
    else:
        click.echo(str(number) if batch.asked.brief else f"Submitted batch job {number}")
    without = ", ".join(dict.fromkeys(each.said for each in batch.asked.ignored))
    note(
        f"job {number} is hpcdl's"
        + (f", without {without}" if without else "")
        + " (HPCDL_BYPASS=1: the batch system's)"
    )
