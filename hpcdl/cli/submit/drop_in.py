"""`hpcdl submit --as sbatch`: the command line of sbatch or bsub, for the wrappers in jobscripts/.

A job goes to hpcdl where a daemon answers, the job asks for GPUs, and nothing that it asks for would be lost but what
hpcdl decides itself. Any other goes to the batch system, with the same arguments and the same standard input.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from hpcdl.batch import features
from hpcdl.batch.features import Node
from hpcdl.batch.options import IGNORED, BadLine, IgnoredOption, NotForHpcdl, Reason
from hpcdl.batch.script import BatchScript, SubmitCommand, command_named, text_of
from hpcdl.batch.system import own_jobs
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


_NEVER_LEFT = {Reason.LACKS.text, Reason.HOLD.text, Reason.WAIT.text}
"""Without these, --test-only or --hold say, a job would run that is not to."""


def follows_own(name: str, words: Sequence[str]) -> bool:
    """Whether a job of hpcdl's submits what waits for itself, the next link of its chain: only hpcdl can take that."""
    own = own_jobs(os.environ)
    command = command_named(name)
    found = command.dependency(words, os.environ, text_of(command.script_in(words))) if own else None
    return found is not None and not own.isdisjoint(found.ids)


def batch_of(
    name: str,
    words: tuple[str, ...],
    around: Mapping[str, str],
    nodes: Callable[[], Sequence[Node]] = tuple,
    *,
    only_hpcdl: bool = False,
) -> BatchScript:
    """The batch script that `sbatch WORDS` or `bsub WORDS` would submit. `nodes`: asks for hpcdl's, as `GET /v1/nodes`
    has them. `only_hpcdl`: the batch system cannot take it, so that no doubt keeps it from hpcdl. Raises NotForHpcdl.
    """
    try:
        batch = command_named(name).job_of(words, around, "the command line")
    except BadLine as error:
        raise NotForHpcdl(str(error)) from None  # the batch system says it in its own words
    if not batch.asked.gpus:
        raise NotForHpcdl("it asks for no GPU")
    if _HPCDL.search(text_of(batch.content or b"")):
        raise NotForHpcdl("it runs hpcdl itself")
    if only_hpcdl:
        if never := next((each for each in batch.asked.ignored if each.doubt and each.why in _NEVER_LEFT), None):
            raise NotForHpcdl(never.objection)
        return batch
    if batch.asked.memory_mib and (why := features.too_little_memory(batch.asked.memory_mib, nodes())):
        raise NotForHpcdl(why)
    met: list[IgnoredOption] = []
    for each in batch.asked.ignored:
        if each.doubt:
            if not each.needs:
                raise NotForHpcdl(each.objection)
            if not _met(each.needs, nodes(), batch.command):
                unlike = f"{each.where}: {each.said}: not every node of hpcdl is so"
                raise NotForHpcdl(unlike if each.how == IGNORED else each.objection)
            met.append(each)
    left = tuple(each for each in batch.asked.ignored if each not in met)
    return replace(batch, asked=replace(batch.asked, ignored=left))


def _met(needs: str, nodes: Sequence[Node], command: SubmitCommand) -> bool:
    """Whether hpcdl's nodes have what a job needs, as they show, or as the batch system says."""
    if features.met(needs, nodes) or not needs.startswith("feature:"):
        return features.met(needs, nodes)
    said = command.node_features()
    return features.met(needs, [{**node, "features": said.get(str(node["name"]), ())} for node in nodes])


def waiting_for(client: Client, name: str, other: str | None, batch: BatchScript) -> BatchScript:
    """The same job, waiting for all members of the arrays that it names.

    Raises NotForHpcdl where none of the jobs is hpcdl's, click.ClickException where one is not, or is also the batch
    system's, and ClientError.
    """
    asked = batch.asked
    if asked.singleton:
        own = asked.name or default_name((batch.file,))
        if not dependencies.check_singleton(client, name, own, other) and not asked.awaits:
            raise NotForHpcdl(f"{batch.command.system.title} may have a job named {own} to wait for, hpcdl has none")
    if not asked.awaits:
        return batch
    conditions = dependencies.checked(client, name, asked.awaits, other, own_jobs(os.environ))
    if conditions is None:
        raise NotForHpcdl(f"hpcdl knows no job {asked.awaits[0][0].job} to wait for")
    return replace(batch, asked=replace(asked, after=None, conditions=conditions))


def pass_on(name: str, other: str | None, words: tuple[str, ...], why: str, home: Path) -> NoReturn:
    """Become the batch system's command, and say why; without one exit with NOT_OURS.

    Raises click.ClickException where the job waits for one of hpcdl's, of which the batch system knows nothing.
    """
    why = re.split(": it waits for |: it runs with ", why.removeprefix("refused by --strict: "))[0]
    command = command_named(name)
    found = command.dependency(words, os.environ, text_of(command.script_in(words)))
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


def tell(batch: BatchScript, number: int, doubts: Iterable[str]) -> None:
    """Answer in the batch system's words on stdout, for scripts that read the id; say on stderr where the job went, and
    what may go wrong with it.
    """
    click.echo(batch.command.answer(number, batch.asked))
    ignored = batch.asked.ignored
    without = ", ".join(dict.fromkeys(each.said for each in ignored if each.how == IGNORED))
    note(
        f"job {number} is hpcdl's"
        + (f", without {without}" if without else "")
        + " (HPCDL_BYPASS=1: the batch system's)"
    )
    for doubt in (*(str(each) for each in ignored if each.doubt and each.how != IGNORED), *doubts):
        note(doubt)
