"""`hpcdl submit --as sbatch`: the command line of sbatch or bsub, for the wrappers in jobscripts/.

A job goes to hpcdl where a daemon answers, the job asks for GPUs, and nothing that it asks for would be lost but what
hpcdl decides itself. Any other goes to the batch system, with the same arguments and the same standard input.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from hpcdl.batch import features
from hpcdl.batch.features import Node
from hpcdl.batch.options import IGNORED, BadLine, IgnoredOption, NotForHpcdl
from hpcdl.batch.script import BatchScript, command_named, read_file, read_stdin, text_of
from hpcdl.cli.output import say
from hpcdl.cli.submit import dependencies
from hpcdl.cli.submit.job import default_name
from hpcdl.client import Client

NOT_OURS = 75  # EX_TEMPFAIL: nothing was done


def _quiet() -> bool:
    """Whether nothing is to be said of where a job goes."""
    return bool(os.environ.get("HPCDL_QUIET")) or os.environ.get("HPCDL_VERBOSE") == "0"


_HPCDL = re.compile(
    r"""^[^#\n]*(?:\bhpcdl["'}]*\s(?:.*\s)?(?:allocation|daemon|agent)\b|\bhpcdl\.(?:allocation|daemon|agent)\b)""",
    re.MULTILINE,
)
"""A script that is hpcdl's own allocation, or a pilot's."""


def batch_of(
    name: str, words: tuple[str, ...], around: Mapping[str, str], nodes: Callable[[], Sequence[Node]] = tuple
) -> BatchScript:
    """The batch script that `sbatch WORDS` or `bsub WORDS` would submit. `nodes`: asks for hpcdl's, as `GET /v1/nodes`
    has them. Raises NotForHpcdl."""
    try:
        batch = command_named(name).job_of(words, around, "the command line")
    except BadLine as error:
        raise NotForHpcdl(str(error)) from None  # the batch system says it in its own words
    if not batch.asked.gpus:
        raise NotForHpcdl("it asks for no GPU")
    if _HPCDL.search(text_of(batch.content or b"")):
        raise NotForHpcdl("it runs hpcdl itself")
    if batch.asked.memory_mib and (why := features.too_little_memory(batch.asked.memory_mib, nodes())):
        raise NotForHpcdl(why)
    met: list[IgnoredOption] = []
    for each in batch.asked.ignored:
        if each.doubt:
            if not each.needs:
                raise NotForHpcdl(each.objection)
            if not features.met(each.needs, nodes()):
                unlike = f"{each.where}: {each.said}: not every node of hpcdl is so"
                raise NotForHpcdl(unlike if each.how == IGNORED else each.objection)
            met.append(each)
    left = tuple(each for each in batch.asked.ignored if each not in met)
    return replace(batch, asked=replace(batch.asked, ignored=left))


def waiting_for(client: Client, name: str, other: str | None, batch: BatchScript) -> BatchScript:
    """The same job, waiting for all members of the arrays that it names.

    Raises NotForHpcdl where none of the jobs is hpcdl's, click.ClickException where one is not, or is also the batch
    system's, and ClientError.
    """
    asked = batch.asked
    if asked.singleton:
        own = asked.name or default_name((batch.file,))
        if not dependencies.check_singleton(client, name, own, other) and not asked.awaits:
            raise NotForHpcdl(f"hpcdl has no job named {own} to wait for")
    if not asked.awaits:
        return batch
    conditions = dependencies.checked(client, name, asked.awaits, other)
    if conditions is None:
        raise NotForHpcdl(f"hpcdl knows no job {asked.awaits[0][0].job} to wait for")
    return replace(batch, asked=replace(asked, after=None, conditions=conditions))


def pass_on(name: str, other: str | None, words: tuple[str, ...], why: str, home: Path) -> NoReturn:
    """Become the batch system's command, and say why; without one exit with NOT_OURS.

    Raises click.ClickException where the job waits for one of hpcdl's, of which the batch system knows nothing.
    """
    why = re.split(": it waits for |: it runs with ", why.removeprefix("refused by --strict: "))[0]
    found = command_named(name).dependency(words, os.environ, text_of(_script(name, words)))
    if found is not None:
        dependencies.guard(home, name, found, why, other)
    if other is None:
        say(f"this job is left to {name}: {why}")
        raise click.exceptions.Exit(NOT_OURS)
    if os.environ.get("HPCDL_WRAPPED", ":1").endswith(":1"):  # else it was said
        note(f"this job is left to {other}: {why}")
    sys.stdout.flush()
    os.execv(other, [other, *words])


def note(text: str) -> None:
    """Print where a job goes on stderr, unless its user wants none of that."""
    if not _quiet():
        say(text)


def _script(name: str, words: tuple[str, ...]) -> bytes:
    """The script that the batch system would read, as far as it can be read here."""
    try:
        written, rest = command_named(name).split_line(words)
        if any(each.name == "wrap" for each in written):
            return b""
        if not rest:
            return read_stdin()
        return read_file(rest[0] if os.path.exists(rest[0]) else shutil.which(rest[0]) or rest[0])
    except BadLine:
        return b""


def tell(batch: BatchScript, number: int, doubts: Iterable[str]) -> None:
    """Answer in the batch system's words on stdout, for scripts that read the id; say on stderr where the job went, and
    what may go wrong with it.
    """
    click.echo(batch.command.answer(number, batch.asked))
    without = ", ".join(dict.fromkeys(each.said for each in batch.asked.ignored))
    note(
        f"job {number} is hpcdl's"
        + (f", without {without}" if without else "")
        + " (HPCDL_BYPASS=1: the batch system's)"
    )
    for doubt in doubts:
        note(doubt)
