"""What a batch job waits for, and whose the jobs are that it names: hpcdl's, the batch system's, or of both.

hpcdl and the batch system count their jobs each for itself, so one number may be a job of either. The wrappers in
jobscripts/ ask both before a job that waits for others goes anywhere: an id of hpcdl's never reaches the batch system,
and none of the batch system's is taken for hpcdl's.
"""

import fnmatch
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hpcdl.batch import BatchError, Completed, run
from hpcdl.cli import lsflines, slurmlines
from hpcdl.cli.batchlines import BadLine, Given, head_lines
from hpcdl.cli.rows import FINISHED
from hpcdl.client import Client, ClientError, path_with

SYSTEMS = {"sbatch": "Slurm", "bsub": "LSF"}
_PIECE = 500
"""Ids in one question to the daemon."""
_DIGITS = 15
"""Of an id of hpcdl's at most."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """What a batch job waits for. `said`: as it was written.

    `ids`: of jobs, those of arrays without the member. `names`: of LSF's jobs, with `*`. `single`: the job's own name,
    where it waits for all of that name (Slurm's singleton).
    """

    said: str
    ids: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    single: str | None = None


# --- what is written --------------------------------------------------------------------------------------------------


def ids_of_slurm(value: str) -> tuple[tuple[int, ...], bool]:
    """The ids in a value of sbatch's --dependency, whatever it wants of those jobs; and whether it has singleton."""
    ids: list[int] = []
    single = False
    for part in re.split(r"[,?]", value):
        kind, colon, rest = part.strip().partition(":")
        single = single or kind.strip().lower() == "singleton"
        for each in (rest if colon else kind).split(":"):  # without a kind: how it was written long ago
            if match := re.match(r"\s*\+?(\d+)", each, re.ASCII):
                ids.append(_number(match[1]))
    return tuple(dict.fromkeys(ids)), single


def _number(digits: str) -> int:
    return int(digits.lstrip("0")[: _DIGITS + 1] or 0)  # a longer one is nobody's


_CALL = re.compile(r"[a-z_]+\s*\(\s*(\"[^\"]*\"|'[^']*'|[^,()\s][^,()]*?)\s*(?:,[^()]*)?\)", re.IGNORECASE)
_BARE = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s&|!()]+")


def jobs_of_lsf(value: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ids and the names of jobs in an expression of bsub's -w."""
    words = [match[1] for match in _CALL.finditer(value)]
    words += _BARE.findall(_CALL.sub(" ", value))
    ids: list[int] = []
    names: list[str] = []
    for word in words:
        text = re.sub(r"\[[^\]]*\]$", "", word.strip().strip("\"'").strip())
        if text.isascii() and text.isdigit():
            ids.append(_number(text))
        elif text:
            names.append(text)
    return tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(names))


def dependency_of(
    name: str, words: Sequence[str], around: Mapping[str, str], script: bytes | None
) -> Dependency | None:
    """What `sbatch WORDS` or `bsub WORDS` waits for; None: for nothing. `script`: the one that it is given.

    Finds it also in what neither hpcdl nor the batch system understands otherwise.
    """
    text = (script or b"").decode("utf-8", "surrogateescape")
    if name == "bsub":
        given = [*_in_lines(text, lsflines.MARK, lsflines.split_options, everywhere=True), *_on_line(name, words)]
        value = next((each for each in reversed(given) if each.name == "w"), None)
        if value is None:
            return None
        ids, names = jobs_of_lsf(value.value)
        return Dependency(value.said, ids, names)
    lines = [*_in_lines(text, slurmlines.MARK, slurmlines.split_options, everywhere=False)]
    given = _on_line(name, words)
    value = next((each for each in reversed([*lines, *given]) if each.name == "dependency"), None)
    if value is None and "SBATCH_DEPENDENCY" in around:
        written = around["SBATCH_DEPENDENCY"]
        value = Given("the environment", "dependency", written, f"SBATCH_DEPENDENCY={written}")
    if value is None:
        return None
    ids, single = ids_of_slurm(value.value)
    called = [each.value for each in lines if each.name == "job-name"]
    called += [around["SBATCH_JOB_NAME"]] if "SBATCH_JOB_NAME" in around else []
    called += [each.value for each in given if each.name == "job-name"]
    return Dependency(value.said, ids, (), (called[-1] if called else _default_name(words)) if single else None)


def _default_name(words: Sequence[str]) -> str:
    """What Slurm calls a job that nobody named."""
    try:
        given, rest = split_line("sbatch", words)
    except BadLine:
        return ""
    if any(each.name == "wrap" for each in given):
        return "wrap"
    return os.path.basename(rest[0]) if rest else "sbatch"


def _in_lines(text: str, mark: str, split: Any, *, everywhere: bool) -> Iterator[Given]:
    for _, line in head_lines(text, mark, everywhere=everywhere):
        try:
            parts = shlex.split(line, comments=True)
        except ValueError:
            parts = line.split()
        try:
            yield from split(parts, "")[0]
        except BadLine:
            yield from _anywhere("bsub" if mark == lsflines.MARK else "sbatch", parts)


def split_line(name: str, words: Sequence[str]) -> tuple[list[Given], list[str]]:
    """All options of a command line, and what follows them. Raises BadLine."""
    if name == "bsub":
        return lsflines.split_options(words, "")
    found, rest = slurmlines.split_options(words, "")
    while rest[:1] == [":"]:  # the next component of a heterogeneous job
        more, rest = slurmlines.split_options(rest[1:], "")
        found += more
    return found, rest


def _on_line(name: str, words: Sequence[str]) -> list[Given]:
    try:
        return split_line(name, words)[0]
    except BadLine:
        return list(_anywhere(name, words))


def _anywhere(name: str, words: Sequence[str]) -> Iterator[Given]:
    """The dependencies in words that make no command line otherwise."""
    option = r"-w" if name == "bsub" else r"--dep[a-z]*=?|-d"
    called = "w" if name == "bsub" else "dependency"
    for place, word in enumerate(words):
        if match := re.match(option, word):
            value = word[match.end() :] or next(iter(words[place + 1 :]), "")
            yield Given("", called, value, f"{match[0].rstrip('=')} {value}")


# --- whose they are ---------------------------------------------------------------------------------------------------


def rows_of(client: Client, ids: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Those of the ids that are hpcdl's, with their rows. Raises ClientError."""
    asked = [each for each in ids if each > 0 and len(str(each)) <= _DIGITS]
    found: dict[int, dict[str, Any]] = {}
    for first in range(0, len(asked), _PIECE):
        some = asked[first : first + _PIECE]
        query = path_with("/v1/jobs", all=1, ids=",".join(map(str, some)), fields="id,name,state,array")
        found |= {row["id"]: row for row in client.get(query)["jobs"] if row["id"] in some}
    return found


def has_traces(home: Path, number: int) -> bool:
    """Whether a job of this id was started here: its ledger may have forgotten it, since a restore say."""
    return any((home / name / str(number)).is_dir() for name in ("logs", "checkpoints"))


def members_of(client: Client, ids: Sequence[int], rows: Mapping[int, Mapping[str, Any]]) -> tuple[int, ...]:
    """The ids with all members of the arrays that they name: the wrappers answer for an array with its first id."""
    first = {each for each in ids if rows[each].get("array") == each}
    if not first:
        return tuple(ids)
    every = client.get(path_with("/v1/jobs", all=1, fields="id,array"))["jobs"]
    more = [row["id"] for row in every if row.get("array") in first]
    return tuple(dict.fromkeys((*ids, *more)))


def _named(client: Client, pattern: str, *, live: bool) -> int | None:
    """A job of hpcdl's with such a name, the last one. `live`: that is not finished. Raises ClientError."""
    rows = client.get(path_with("/v1/jobs", all=None if live else 1, fields="id,name,state"))["jobs"]
    known = [row["id"] for row in rows if fnmatch.fnmatchcase(row["name"], pattern)
             and not (live and row["state"] in FINISHED)]  # fmt: skip
    return max(known, default=None)


def knows(name: str, number: int, other: str | None) -> bool | None:
    """Whether the batch system knows a job of this id; None: it does not say. `other`: its sbatch or bsub."""
    if other is None:
        return False
    asks = _SLURM if name == "sbatch" else _LSF
    argvs = [[path, *words, str(number)] for command, *words in asks if (path := _beside(other, command)) is not None]
    said = [_said(argv) for argv in argvs]
    said = [each for each in said if each is None or not _NO_CLUSTER.search(each.err)]
    verdicts = [None if each is None else _verdict(each, number) for each in said]
    if True in verdicts or not verdicts:
        return bool(verdicts)
    return False if False in verdicts else None


_SLURM = (("scontrol", "show", "job"), ("squeue", "--noheader", "--all", "--states=all", "--format=%A %F", "--jobs"))
_LSF = (("bjobs", "-w"), ("bhist",))
_UNKNOWN = re.compile(r"invalid job id|job <\S+> is not found|no matching job found", re.IGNORECASE)


_NO_CLUSTER = re.compile(r"could not establish a configuration source", re.IGNORECASE)
"""Slurm's commands are installed, and serve no cluster: they know of no job, and their sbatch takes none."""


def _said(argv: Sequence[str]) -> Completed | None:
    try:
        return run(argv)
    except BatchError:
        return None


def _verdict(done: Completed, number: int) -> bool | None:
    if re.search(rf"^\s*(?:\d+\s+)?{number}\b|\bJobId={number}\b|Job <{number}(?:\[\d+\])?>,", done.out, re.MULTILINE):
        return True
    return False if _UNKNOWN.search(done.out + done.err) else None


def _beside(other: str, command: str) -> str | None:
    """The batch system's command: where its sbatch or bsub is, else the one in PATH."""
    path = os.path.join(os.path.dirname(other), command)
    return path if os.access(path, os.X_OK) else shutil.which(command)


# --- what follows -----------------------------------------------------------------------------------------------------


def checked(client: Client, name: str, said: str, ids: Sequence[int], other: str | None) -> tuple[int, ...] | None:
    """What a job of hpcdl's is to wait for, where all of the ids are hpcdl's only, with the members of arrays.

    None: none of them is. Raises ClientError, and click.ClickException where nobody can tell whose they are.
    """
    rows = rows_of(client, ids)
    if not rows:
        return None
    strange = [each for each in ids if each not in rows]
    if strange:
        raise _refusal(said, f"job {next(iter(rows))} is hpcdl's and job {strange[0]} is not: no job can wait for both")
    for each in ids:
        _refuse_known_to_both(name, said, each, other)
    return members_of(client, ids, rows)


def _refuse_known_to_both(name: str, said: str, number: int, other: str | None) -> None:
    system, verdict = SYSTEMS[name], knows(name, number, other)
    step = f"hpcdl submit --after {number} for hpcdl's, HPCDL_BYPASS=1 for {system}'s"
    if verdict is None:
        raise _refusal(said, f"hpcdl knows job {number}, and {system} does not say whether it knows one, too: {step}")
    if verdict:
        raise _refusal(said, f"hpcdl and {system} both know job {number}: {step}")


def guard(home: Path, name: str, found: Dependency, why: str, other: str | None) -> None:
    """For a job that is about to go to the batch system, because of `why`. Raises click.ClickException where it waits
    for one of hpcdl's, or may.
    """
    system = SYSTEMS[name]
    with Client(home) as client:
        try:
            rows = rows_of(client, found.ids)
            named = [(each, _named(client, each, live=False)) for each in found.names]
            single = None if found.single is None else _named(client, found.single, live=True)
        except ClientError as error:
            _guard_alone(home, found, str(error), system)
            return
    for number in (each for each in found.ids if each in rows or has_traces(home, each)):
        _refuse_known_to_both(name, found.said, number, other)
        step = f"submit it once hpcdl wait {number} returns, or with hpcdl submit --after {number}"
        if found.said in why:  # it is the condition that hpcdl does not have
            kind = "afterok:ID" if name == "sbatch" else "done(ID)"
            raise _refusal(
                found.said, f"job {number} is hpcdl's, where jobs wait for others to be DONE ({kind}): {step}"
            )
        reason = f"job {number} is hpcdl's, and {system} takes this job ({why}), which cannot wait for it"
        raise _refusal(found.said, f"{reason}: {step}")
    for called, job in (*named, (found.single, single)):
        if job is not None:
            step = f"submit it once hpcdl wait {job} returns, or HPCDL_BYPASS=1 for {system}'s"
            raise _refusal(
                found.said, f"job {job} of hpcdl's is called {called}, and {system} cannot wait for it: {step}"
            )


def _guard_alone(home: Path, found: Dependency, why: str, system: str) -> None:
    """The same while no daemon answers: by the ledger."""
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
