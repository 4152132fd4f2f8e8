"""Arguments that name jobs: ids, ranges, names and globs, with `--array`, `--tag`, `--state` and `--all`.

What was typed is parsed here, and looked up in one list of jobs (`GET /v1/jobs`); ids alone need no list. A word that
looks like a number is an id, never a name. Nothing is done to jobs here: that is for jobs.py and the other verbs.
"""

import functools
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import click

from hpcdl.cli import completion
from hpcdl.cli.job_row import FINISHED, STATES, states_in, submitted_name
from hpcdl.cli.output import Row, cut
from hpcdl.client import Client, path_with
from hpcdl.core.model.units import meant, ranges

F = TypeVar("F", bound=Callable[..., Any])
Filter = Callable[[Row], bool]
"""Whether a verb concerns a job."""

MOST = 100_000
"""Jobs that one command line may name."""
ASKS_ABOVE = 20
"""A verb that is to act on more jobs asks first, on a terminal."""

FIELDS = ("id", "name", "state", "array", "array_index", "sweep", "held")
"""What of its row a job is chosen by."""

_RANGE = re.compile(r"([1-9]\d{0,14})(?:-([1-9]\d{0,14}))?", re.ASCII)
_MEMBERS = re.compile(r"([1-9]\d{0,14})[-_]?\[(\d[\d,:-]*)\]", re.ASCII)
_NUMBERS = re.compile(r"\d[\d,\s-]*", re.ASCII)
_LIST = re.compile(rf"(?:{_MEMBERS.pattern}|[\d-]+)(?:,(?:{_MEMBERS.pattern}|[\d-]+))*", re.ASCII)
_COMMA = re.compile(r",(?![^\[]*\])")
_SEVERAL = re.compile(r"([1-9]\d{0,14})[-,]\d[-,\d]*", re.ASCII)
_NEAR = 3  # names that are suggested


@dataclass(frozen=True, slots=True)
class Members:
    """`3-[5-20]`: members of the array that job 3 is in, by their indices, from the first to the last, so far apart."""

    array: int
    indices: tuple[tuple[int, int, int], ...]
    text: str


Word = range | Members | str
"""Ids, members of an array, or a name or glob."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which jobs a command line means: those that `words` and `array` name, together; without these all. Of them those
    with one of the tags and in one of the states, where these are said.
    """

    words: tuple[Word, ...] = ()
    array: int | None = None
    tags: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()
    every: bool = False  # --all: without it, a command line without words means no job
    yes: bool = False  # acts on many jobs without asking

    def __bool__(self) -> bool:
        return bool(self.words or self.array or self.tags or self.states or self.every)

    @property
    def single(self) -> bool:
        """Whether it is one job's id, and nothing else."""
        return self.plain and self.array is None and len(self.ids) == 1

    @property
    def plain(self) -> bool:
        """Whether ids, and an array, are all there is, so that no list of jobs is needed."""
        return not (self.tags or self.states or self.every) and all(isinstance(word, range) for word in self.words)

    @property
    def ids(self) -> list[int]:
        """The ids that were typed, each once, in their order."""
        return list(dict.fromkeys(each for word in self.words if isinstance(word, range) for each in word))

    def look_up(self, client: Client, concerns: Filter = lambda row: True, finished: bool = True) -> list[int]:
        """The ids of the jobs, in one or two requests. Raises ClientError, and UsageError where a word names none.

        `concerns`: jobs that are meant rather than others of the same name; `finished`: whether finished ones may be
        among these.
        """
        if self.plain and self.array is None:
            return self.ids
        fields = ",".join((*FIELDS, *(("tags",) if self.tags else ())))
        if not finished:  # a list of these is short, and most often enough
            rows = client.get(path_with("/v1/jobs", fields=fields))["jobs"]
            if all(self._named(rows, word) or isinstance(word, range) for word in self._words()):
                return self.choose(rows, concerns)
        return self.choose(client.get(path_with("/v1/jobs", all=1, fields=fields))["jobs"], concerns)

    def choose(self, rows: Sequence[Row], concerns: Filter = lambda row: True) -> list[int]:
        """The ids of those of the rows, and the ids that were typed without a filter. Raises UsageError."""
        found: dict[int, None] = {}
        filtered = bool(self.tags or self.states)
        for word in self._words():
            if isinstance(word, range) and not filtered:
                found.update(dict.fromkeys(word))
                continue
            named = self._named(rows, word)
            if not named and not isinstance(word, range):
                raise click.UsageError(_unknown(rows, word), click.get_current_context(silent=True))
            chosen = list(filter(self._passes, named))
            found.update(dict.fromkeys(row["id"] for row in list(filter(concerns, chosen)) or chosen))
        if not self.words and self.array is None:
            found.update(dict.fromkeys(row["id"] for row in rows if self._passes(row) and concerns(row)))
        return list(found)

    def _words(self) -> tuple[Word, ...]:
        return self.words if self.array is None else (*self.words, Members(self.array, (), f"--array {self.array}"))

    def _passes(self, row: Row) -> bool:
        if self.states and row["state"] not in self.states:
            return False
        return not self.tags or any(fnmatchcase(tag, each) for tag in row.get("tags") or () for each in self.tags)

    @staticmethod
    def _named(rows: Sequence[Row], word: Word) -> Sequence[Row]:
        """The rows that a word names."""
        if isinstance(word, range):
            return [row for row in rows if row["id"] in word]
        if isinstance(word, Members):
            array = next((row.get("array") for row in rows if row["id"] == word.array), None)
            return [row for row in rows if array and row.get("array") == array and _within(row, word)]
        exact = [row for row in rows if word in (row["name"], submitted_name(row))]
        if exact:  # the last submit of that name, and what is not finished
            last = max(row.get("array") or row["id"] for row in exact)
            return [row for row in exact if (row.get("array") or row["id"]) == last or row["state"] not in FINISHED]
        pattern = re.compile(re.escape(word).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
        return [row for row in rows if pattern.fullmatch(row["name"])] if set(word) & set("*?") else ()


def _within(row: Row, members: Members) -> bool:
    index = row["array_index"]
    return not members.indices or any(
        first <= index <= last and (index - first) % step == 0 for first, last, step in members.indices
    )


def _unknown(rows: Sequence[Row], word: str | Members) -> str:
    """What is said where a word names no job."""
    if isinstance(word, Members):
        if any(row["id"] == word.array for row in rows):
            array = next(row.get("array") for row in rows if row["id"] == word.array)
            if array:
                return f"array {array} has no member {word.text}: hpcdl ls --all --no-fold lists them"
            return f"job {word.array} is in no array: hpcdl show {word.array}"
        return f"there is no job {word.array}: hpcdl ls --all lists them"
    names = dict.fromkeys(name for row in reversed(rows) for name in (submitted_name(row), row["name"]))
    hint = meant(word, names, "hpcdl ls --all lists them", most=_NEAR)
    return f"no job's name {'matches' if set(word) & set('*?') else 'is'} {word[:100]!r}: {hint}"


def concerned_by(verb: str) -> Filter:
    """Which of the jobs of a name a verb means: the unfinished ones, those that wait, are held, or have failed."""
    if verb == "retry":
        return lambda row: row["state"] in ("FAILED", "CANCELLED")
    if verb == "hold":
        return lambda row: row["state"] in ("QUEUED", "SUSPENDED")
    if verb in ("resume", "release"):
        return lambda row: bool(row.get("held"))
    if verb == "exec":
        return lambda row: row["state"] in ("RUNNING", "RESCALING", "SUSPENDING")
    if verb in ("cancel", "suspend", "drill", "priority"):
        return lambda row: row["state"] not in FINISHED
    return lambda row: True


# --- on the command line ----------------------------------------------------------------------------------------------


def words_of(ctx: click.Context, param: click.Parameter | None, values: Iterable[str]) -> tuple[Word, ...]:
    """What arguments name: `3-7 12`, `3,5`, `3-[5-20]`, `sweep`, `train-*`. Raises BadParameter."""
    found: list[Word] = []
    size = 0
    for value in values:
        listed = _NUMBERS.fullmatch(value.strip()) or _LIST.fullmatch(value)
        for part in map(str.strip, _COMMA.split(value)) if listed or not value.strip() else (value,):
            found.append(_word(ctx, param, part, is_id=not value.strip() or listed is not None))
            size += len(found[-1]) if isinstance(found[-1], range) else 0
            if size > MOST:
                raise click.BadParameter(f"{part!r}: at most {MOST} jobs at once", ctx, param)
    return tuple(found)


def _word(ctx: click.Context, param: click.Parameter | None, text: str, is_id: bool) -> Word:
    if not is_id:
        return text
    if match := _MEMBERS.fullmatch(text):
        from hpcdl.core.model.arrays import indices_from

        try:
            return Members(int(match[1]), indices_from(match[2]), text)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    match = _RANGE.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text[:100]!r} is not a job's number, nor a range like 3-7", ctx, param)
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise click.BadParameter(f"{text!r}: a range goes up, {last}-{first}", ctx, param)
    return range(first, last + 1)


def job_ids(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    """The ids of arguments like `3-7 12` or `3,5`, each once, in their order; for those that take no names."""
    words = words_of(ctx, param, values)
    wrong = next((word for word in words if not isinstance(word, range)), None)
    if wrong is not None:
        what, option = word_text(wrong)[:100], max(param.opts, key=len)
        step = f"; a name is given alone: {option} {shlex.quote(what)}" if isinstance(wrong, str) else ""
        raise click.BadParameter(f"{what!r} is not a job's number, nor a range like 3-7{step}", ctx, param)
    return tuple(Selection(words).ids)


def states_of(ctx: click.Context, param: click.Parameter | None, values: Iterable[str]) -> frozenset[str]:
    """The states of `--state queued,running`. Raises UsageError."""
    return frozenset(states_in(ctx, values))


def _tags(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


class JobId(click.IntRange):
    """A job's number on the command line."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails with the next step."""
        text = str(value)
        if match := _SEVERAL.fullmatch(text):
            self.fail(f"{text[:40]!r} are several jobs, and one is meant here: {match[1]}, say", param, ctx)
        if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text) > 0):
            self.fail(f"{text[:40]!r} is not a job's number: hpcdl ls --all lists them", param, ctx)
        return int(text)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The daemon's jobs."""
        return completion.job_ids(ctx, param, incomplete)


class OneJob(JobId):
    """A job's number, or its name (see `one_job`)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A range of one id, or another word."""
        text = str(value)
        if not text.strip() or _NUMBERS.fullmatch(text):
            number = super().convert(value, param, ctx)
            return range(number, number + 1)
        return words_of(ctx or click.get_current_context(), param, (text,))[0]


def word_text(word: Word) -> str:
    """The word as it was typed."""
    return ranges(word) if isinstance(word, range) else word.text if isinstance(word, Members) else word


JOB_ID = JobId(min=1)
ONE_JOB = OneJob(min=1)


def one_job(client: Client, word: Word, concerns: Filter = lambda row: True) -> int:
    """The one job that a word of `ONE_JOB` names. Raises UsageError where there are several."""
    ids = Selection((word,)).look_up(client, concerns)
    if len(ids) > 1:
        several = f"{word_text(word)[:100]!r} are jobs {ranges(ids)}, and one is meant here: {ids[-1]}, say"
        raise click.UsageError(several, click.get_current_context(silent=True))
    return ids[0]


ARRAY = click.option("--array", type=JOB_ID, metavar="ID", help="All members of the array that this job is in.")
METAVAR = "JOB|FIRST-LAST|NAME..."


def selects(*, acts: bool, argument: bool = True) -> Callable[[F], F]:
    """Gives a command the arguments and options that name jobs; it is called with `chosen`, a Selection.

    `acts`: it does something to jobs, and so has `--yes`; without `argument` the words are the command's own.
    """

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_selection(
            *args: Any, jobs: tuple[Word, ...] = (), array: int | None, tags: tuple[str, ...],
            states: frozenset[str], all_jobs: bool, unasked: bool = False, **options: Any,
        ) -> Any:  # fmt: skip
            return command(*args, chosen=Selection(jobs, array, tags, states, all_jobs, unasked), **options)

        found: Any = with_selection
        if acts:
            found = click.option(
                "-y",
                "--yes",
                "unasked",
                is_flag=True,
                help=f"Do not ask, on a terminal, before it is more than {ASKS_ABOVE}.",
            )(found)
        found = click.option("--all", "all_jobs", is_flag=True, help="All jobs that this concerns.")(found)
        found = click.option(
            "--state", "states", multiple=True, metavar="STATE,…", callback=states_of,
            shell_complete=completion.words(STATES, listed=True), help="Of them (of all jobs) those in these states.",
        )(found)  # fmt: skip
        found = click.option(
            "--tag", "tags", multiple=True, metavar="GLOB,…", callback=_tags,
            help="Of them (of all jobs) those with such a tag.",
        )(found)  # fmt: skip
        found = ARRAY(found)
        if argument:
            found = click.argument(
                "jobs", nargs=-1, callback=words_of, metavar=METAVAR, shell_complete=completion.job_ids
            )(found)
        return found  # type: ignore[no-any-return]

    return decorate


def check_named(ctx: click.Context, chosen: Selection, usage: str) -> None:
    """Raises UsageError, with the usage, where no job is named."""
    if not chosen:
        raise click.UsageError(
            f"say which jobs: hpcdl {usage}, a NAME, --array ID, --tag TAG, --state STATE or --all", ctx
        )


def asks(chosen: Selection) -> bool:
    """Whether somebody is there to be asked, and did not say `--yes`."""
    return not chosen.yes and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(ctx: click.Context, verb: str, ids: Sequence[int]) -> None:
    """Asks whether the verb is meant for so many jobs; without a yes, that is the command's end."""
    if len(ids) > ASKS_ABOVE and not click.confirm(f"{verb} {len(ids)} jobs ({cut(ranges(ids), 50)})?", err=True):
        raise click.ClickException("nothing was done (--yes does not ask)")
