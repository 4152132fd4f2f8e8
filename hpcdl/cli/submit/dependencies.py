"""What a batch job waits for, and whose the jobs are that it names: hpcdl's, the batch system's, or of both.

hpcdl and the batch system count their jobs each for itself, so one number may be a job of either. The wrappers in
jobscripts/ ask both before a job that waits for others goes anywhere: an id of hpcdl's never reaches the batch system,
and none of the batch system's is taken for hpcdl's.
"""

import fnmatch
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hpcdl.batch.adapter import Completed
from hpcdl.batch.command import run
from hpcdl.batch.script import BatchDependency, SubmitCommand, command_named
from hpcdl.batch.system import BatchError, own_jobs
from hpcdl.cli.job_row import FINISHED, submitted_name
from hpcdl.client import Client, ClientError, DaemonAway, path_with
from hpcdl.core.model.dependency import Condition

_PIECE = 500
"""Ids in one question to the daemon."""
_DIGITS = 15
"""Of an id of hpcdl's at most."""


def rows_of(client: Client, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The rows of those ids that are jobs of hpcdl. Raises ClientError."""
    asked = [each for each in ids if each > 0 and len(str(each)) <= _DIGITS]
    found: dict[int, dict[str, Any]] = {}
    for first in range(0, len(asked), _PIECE):
        some = asked[first : first + _PIECE]
        query = path_with("/v1/jobs", all=1, ids=",".join(map(str, some)), fields="id,name,state,array")
        found |= {row["id"]: row for row in client.get(query)["jobs"] if row["id"] in some}
    return found


def has_traces(home: Path, number: int) -> bool:
    """Whether a job of this id was started here: its ledger may have forgotten it, after a restore for example."""
    return any((home / name / str(number)).is_dir() for name in ("logs", "checkpoints"))


def members_of(client: Client, ids: Sequence[int], rows: Mapping[int, Mapping[str, Any]]) -> dict[int, tuple[int, ...]]:
    """The jobs that each id means: all members where it names an array, for the wrappers answer with its first id."""
    found: dict[int, tuple[int, ...]] = {each: (each,) for each in ids}
    if any(rows[each].get("array") == each for each in ids):
        for row in client.get(path_with("/v1/jobs", all=1, fields="id,array"))["jobs"]:
            first = row.get("array")
            if first in found and rows[first].get("array") == first and row["id"] != first:
                found[first] = (*found[first], row["id"])
    return found


def _named(client: Client, pattern: str, *, live: bool) -> int | None:
    """The last job of hpcdl whose name matches; `live`: that is not finished. Raises ClientError."""
    fields = "id,name,state,array,array_index,sweep"
    rows = client.get(path_with("/v1/jobs", all=None if live else 1, fields=fields))["jobs"]
    known = [row["id"] for row in rows if not (live and row["state"] in FINISHED)
             and any(fnmatch.fnmatchcase(name, pattern) for name in {row["name"], submitted_name(row)})]  # fmt: skip
    return max(known, default=None)


def knows(command: SubmitCommand, number: int, other: str | None) -> bool | None:
    """Whether the batch system knows a job of this id; None: it does not say. `other`: its sbatch or bsub."""
    if other is None:
        return False
    argvs = [[path, *words, str(number)] for each, *words in command.lookups if (path := _beside(other, each))]
    said = [_said(argv) for argv in argvs]
    said = [each for each in said if each is None or not command.no_cluster.search(each.err)]
    verdicts = [None if each is None else _verdict(command, each, number) for each in said]
    if True in verdicts or not verdicts:
        return bool(verdicts)
    return False if False in verdicts else None


def _said(argv: Sequence[str]) -> Completed | None:
    try:
        return run(argv)
    except BatchError:
        return None


def _verdict(command: SubmitCommand, done: Completed, number: int) -> bool | None:
    if re.search(command.job_pattern.format(number, number), done.out, re.MULTILINE):
        return True
    return False if command.no_job.search(done.out + done.err) else None


def _beside(other: str, command: str) -> str | None:
    """The batch system's command: where its sbatch or bsub is, else the one in PATH."""
    path = os.path.join(os.path.dirname(other), command)
    return path if os.access(path, os.X_OK) else shutil.which(command)


# --- what follows -----------------------------------------------------------------------------------------------------


def checked(
    client: Client,
    name: str,
    groups: Sequence[tuple[Condition, ...]],
    other: str | None,
    own: frozenset[int] = frozenset(),
) -> tuple[tuple[Condition, ...], ...] | None:
    """The conditions, on all members of arrays, where all of the ids are hpcdl's only. `own`: of the job that submits,
    where nobody else is meant by them.

    None: none of them is. Raises ClientError, and click.ClickException where nobody knows whose they are.
    """
    ids = list(dict.fromkeys(each.job for group in groups for each in group))
    said = f"job {', '.join(map(str, ids))} to wait for"
    try:
        rows = rows_of(client, ids)
    except DaemonAway:
        if not own.issuperset(ids) or os.environ.get("HPCDL_ARRAY_JOB"):  # all members of which only it knows
            raise
        return tuple(groups)
    if not rows:
        return None
    strange = [each for each in ids if each not in rows]
    if strange:
        raise _refusal(said, f"job {next(iter(rows))} is hpcdl's and job {strange[0]} is not: no job can wait for both")
    for each in ids:
        if each not in own:
            _refuse_known_to_both(name, said, each, other)
    members, found = members_of(client, ids, rows), list[tuple[Condition, ...]]()
    for group in groups:
        if len(group) == 1:
            found += [(replace(group[0], job=number),) for number in members[group[0].job]]
        elif array := next((each.job for each in group if len(members[each.job]) > 1), 0):
            raise _refusal(
                said, f"job {array} is an array, of which no job can wait for all members or for another job"
            )
        else:
            found.append(group)
    return tuple(found)


def check_singleton(client: Client, name: str, own: str, other: str | None) -> bool:
    """Whether a job that waits for all of this name is hpcdl's: a job of hpcdl's is called so, or nobody's is. Raises
    ClientError, and click.ClickException where one of the batch system's may be called as hpcdl's.
    """
    system, theirs = command_named(name).system.title, _knows_name(command_named(name), own, other)
    if _named(client, own, live=True) is None:
        return theirs is False
    if theirs is not False:
        why = f"a job of hpcdl's is called {own}, and {system} {'knows' if theirs else 'may know'} one, too"
        raise _refusal("singleton", f"{why}: hpcdl submit --singleton for hpcdl's, HPCDL_BYPASS=1 for the other")
    return True


def _knows_name(command: SubmitCommand, called: str, other: str | None) -> bool | None:
    """Whether the batch system has a job of this user's that is called so; None: it does not say."""
    argv = [*command.name_lookup, called]
    if other is None or (path := _beside(other, argv[0])) is None:
        return False
    done = _said([path, *argv[1:]])
    if done is not None and command.no_cluster.search(done.err):
        return False
    words = [] if done is None or done.code != 0 else done.out.split()
    return words[-1] != command.name_header if command.name_header in words else None


def _refuse_known_to_both(name: str, said: str, number: int, other: str | None) -> None:
    system, verdict = command_named(name).system.title, knows(command_named(name), number, other)
    step = f"hpcdl submit --after {number} for hpcdl's, HPCDL_BYPASS=1 for {system}'s"
    if verdict is None:
        raise _refusal(said, f"hpcdl knows job {number}, and {system} does not say whether it knows one, too: {step}")
    if verdict:
        raise _refusal(said, f"hpcdl and {system} both know job {number}: {step}")


def guard(home: Path, name: str, found: BatchDependency, why: str, other: str | None) -> None:
    """For a job that is about to go to the batch system, because of `why`. Raises click.ClickException where it waits
    for one of hpcdl's, or may.
    """
    command = command_named(name)
    system = command.system.title
    with Client(home) as client:
        try:
            rows = rows_of(client, found.ids)
            named = [(each, _named(client, each, live=False)) for each in found.names]
            single = None if found.single is None else _named(client, found.single, live=True)
        except ClientError as error:
            _guard_alone(home, found, str(error), system)
            return
    for number in (each for each in found.ids if each in rows or has_traces(home, each)):
        if number not in own_jobs(os.environ):
            _refuse_known_to_both(name, found.said, number, other)
        step = f"submit it once hpcdl wait {number} returns, or with hpcdl submit --after {number}"
        if found.said in why:  # it is the condition that hpcdl does not have
            raise _refusal(
                found.said, f"job {number} is hpcdl's, where jobs wait for others to be DONE ({command.after}): {step}"
            )
        reason = f"job {number} is hpcdl's, and {system} takes this job ({why}), which cannot wait for it"
        raise _refusal(found.said, f"{reason}: {step}")
    for called, job in (*named, (found.single, single)):
        if job is not None:
            step = f"submit it once hpcdl wait {job} returns, or HPCDL_BYPASS=1 for {system}'s"
            raise _refusal(
                found.said, f"job {job} of hpcdl's is called {called}, and {system} cannot wait for it: {step}"
            )


def _guard_alone(home: Path, found: BatchDependency, why: str, system: str) -> None:
    """The same from the ledger, while no daemon answers."""
    from hpcdl.ledger.offline import jobs_at_rest

    step = f"hpcdl daemon start, and submit it again; HPCDL_BYPASS=1 if {system}'s is meant"
    number, named = next(iter(found.ids), None), next(iter((*found.names, found.single)), None)
    try:
        jobs = jobs_at_rest(home)
    except (OSError, ValueError):
        pass  # each of them may be hpcdl's
    else:
        number = next((each for each in found.ids if each in jobs.ids or has_traces(home, each)), None)
        named = next((each for each in found.names if fnmatch.filter(jobs.names, each)), None)
        if found.single in jobs.live:
            named = found.single
    if number is not None:
        raise _refusal(found.said, f"job {number} may be hpcdl's, whose daemon does not answer ({_short(why)}): {step}")
    if named is not None:
        told = f"a job of hpcdl's may be called {named}, and its daemon does not answer ({_short(why)}): {step}"
        raise _refusal(found.said, told)


def _short(why: str) -> str:
    return why.partition(": ")[0]


def _refusal(said: str, why: str) -> click.ClickException:
    return click.ClickException(f"{said}: {why}")
