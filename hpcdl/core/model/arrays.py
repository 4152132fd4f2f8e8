"""Arrays: many jobs by one submit, which is one event. What they are follows from the template and the values alone."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from hpcdl.core.model.frozen import unchecked
from hpcdl.core.model.job import JobSpec, parse_batch_size
from hpcdl.core.model.member_name import member_name, printable
from hpcdl.core.model.units import meant

INDEX = "index"
"""The placeholder of a member's index; no sweep may have that name."""

HIGHEST = 999_999_999
"""The highest index."""

MOST = 100_000
"""Members that an array may have by itself; what a submit takes is a setting."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_PLACE = re.compile(r"(?<!\$)(\{?)\{([A-Za-z_][A-Za-z0-9_.-]*)\}(\}?)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)

Steps = tuple[int, int, int]
"""Indices from the first to the last, so far apart."""


@dataclass(frozen=True, slots=True)
class Array:
    """Which jobs an array has. Raises ValueError where it has none, or too many.

    Each index of `indices` for each combination of the values of `sweep`; without indices each combination once, and
    the indices count them from 1. `max_parallel`: so many may hold GPUs at a time, 0: any number.
    """

    indices: tuple[Steps, ...] = ()
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    max_parallel: int = 0

    def __post_init__(self) -> None:
        if not self.indices and not self.sweep:
            raise ValueError("an array needs indices or a sweep")
        for first, last, step in self.indices:
            if not (0 <= first <= last <= HIGHEST and step >= 1):
                raise ValueError(f"the indices {first}-{last}:{step} must go up, by at least 1, to at most {HIGHEST}")
        if not 0 <= self.max_parallel <= MOST:
            raise ValueError(f"at most {self.max_parallel} at a time: must be from 1 to {MOST}")
        names = [name for name, _ in self.sweep]
        for name, values in self.sweep:
            if not _NAME.fullmatch(name) or name == INDEX:
                form = f"a letter or _ first, then letters, digits, _, . and -, and not {INDEX}"
                raise ValueError(f"{name!r} is no name of a sweep: {form}")
            if names.count(name) > 1:
                raise ValueError(f"the sweep {name} is given twice: write all its values after one, {name}=A,B,C")
            if not values:
                raise ValueError(f"the sweep {name} has no values")
            if any("\0" in value or not _encodes(value) for value in values):
                raise ValueError(f"the values of the sweep {name} must be text without NUL characters")
        if self.size > MOST:
            raise ValueError(f"an array of {self.size} jobs: it may have {MOST} at most")
        if self.indices and self.size <= MOST and len(set(self._listed())) != sum(map(_length, self.indices)):
            raise ValueError("an index is given twice")

    @property
    def size(self) -> int:
        """How many jobs it has."""
        number = sum(map(_length, self.indices)) if self.indices else 1
        for _, values in self.sweep:
            number *= len(values)
        return number

    @property
    def names(self) -> tuple[str, ...]:
        """What a template may name in braces."""
        return (INDEX, *(name for name, _ in self.sweep))

    def _listed(self) -> Iterator[int]:
        for first, last, step in self.indices:
            yield from range(first, last + 1, step)

    def members(self) -> Iterator[tuple[int, tuple[tuple[str, str], ...]]]:
        """The index and the values of each job, in order."""
        names = [name for name, _ in self.sweep]
        combinations = product(*(values for _, values in self.sweep))
        for number, values in enumerate(combinations, 1):
            swept = tuple(zip(names, values, strict=True))
            for index in self._listed() if self.indices else (number,):
                yield index, swept


def _length(steps: Steps) -> int:
    first, last, step = steps
    return (last - first) // step + 1


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def indices_from(text: str) -> tuple[Steps, ...]:
    """`1-100`, `1-9:2`, `1,5,7-9`. Raises ValueError."""
    found: list[Steps] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            if re.search(r"\d{10}", part):
                raise ValueError(f"{part.strip()[:40]!r}: an index has 9 digits at most")
            cap = re.search(r"%(\d+)$", text)
            hint = f": --max-parallel {cap[1]} in place of %{cap[1]}" if cap else ""
            raise ValueError(f"{part.strip()[:40]!r} is not an index, FROM-TO or FROM-TO:STEP{hint}")
        first = int(match[1])
        last, step = int(match[2] or first), int(match[3] or 1)
        if last < first or step < 1:
            raise ValueError(f"{part.strip()!r} must go up, by at least 1")
        found.append((first, last, step))
    return tuple(found)


def indices_text(indices: Iterable[Steps]) -> str:
    """`1-9:2,12`, as `indices_from` reads it."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" + (f":{step}" if step != 1 else "")
        for first, last, step in indices
    )


def indices_of(numbers: Iterable[int]) -> tuple[Steps, ...]:
    """The same from a list; what stands evenly apart is taken together."""
    found: list[Steps] = []
    for number in numbers:
        if found:
            first, last, step = found[-1]
            if first == last and number > last:
                found[-1] = (first, number, number - last)
                continue
            if first != last and number == last + step:
                found[-1] = (first, number, step)
                continue
        found.append((number, number, 1))
    return tuple(found)


def named(words: Iterable[str]) -> set[str]:
    """The placeholders that these words hold."""
    return {match[2] for word in words for match in _PLACE.finditer(word) if not (match[1] and match[3])}


def literal(word: str) -> str:
    """The word as a template has it that is to hold it unchanged."""
    return _PLACE.sub(lambda match: f"{{{match[0]}}}", word)


def check_places(spec: JobSpec, array: Array) -> None:
    """Raises ValueError where a word names what the array does not have."""
    for word in (*spec.command, spec.name, spec.checkpoint_dir or "", spec.output, spec.error):
        for name in sorted(named((word,)) - set(array.names)):
            there = f"there are {', '.join(map('{{{}}}'.format, array.names))}"
            hint = meant(name, array.names, there, text="{{{}}}".format)
            raise ValueError(f"{word!r} names {{{name}}}, which is no sweep of this array; {hint} ({{{{{name}}}}} "
                             f"stands for {{{name}}} itself)")  # fmt: skip
    if spec.batch_sweep:
        check_batch_sweep(spec.batch_sweep, array.sweep)


def check_batch_sweep(name: str, sweep: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Raises ValueError unless the values of this sweep are batch sizes."""
    values = dict(sweep).get(name)
    if values is None:
        raise ValueError(f"the batch size is that of the sweep {name}, which there is not: --sweep {name}=16,32,64")
    for value in values:
        try:
            parse_batch_size(value)
        except ValueError as error:
            raise ValueError(f"the sweep {name} has the batch sizes: {error}") from None


Filled = Callable[[dict[str, str]], str]


def _filler(word: str) -> Filled | None:
    """Puts values into a word; None where there is nothing to put in."""
    parts: list[tuple[str, str]] = []  # text, and the name of what follows it
    at = 0
    plain = ""
    for match in _PLACE.finditer(word):
        doubled, name, closed = match.groups()
        if doubled and closed:
            plain += word[at : match.start()] + "{" + name + "}"
        else:
            parts.append((plain + word[at : match.start()] + doubled, name))
            plain = closed
        at = match.end()
    rest = plain + word[at:]
    if not parts:
        return None if rest == word else lambda values: rest
    if len(parts) == 1:
        before, name = parts[0]
        return lambda values: f"{before}{values[name]}{rest}"
    return lambda values: "".join([before + values[name] for before, name in parts]) + rest


def expand(template: JobSpec, array: Array, first: int) -> tuple[JobSpec, ...]:
    """The specs of an array's jobs, whose first has the id `first`. Raises ValueError where one of them cannot be.

    Values are put in where a word of the command, the name, the checkpoint folder or a file for output holds `{name}`;
    a name without such is followed by them in brackets. One of them may be the batch size. All of them are learnt of
    together. They share everything else, so that what was checked of the template holds for them.
    """
    base = replace(template, model=template.model or template.name)
    fillers = [(place, fill) for place, word in enumerate(base.command) if (fill := _filler(word)) is not None]
    naming = _filler(base.name) if named((base.name,)) else None
    places = {"checkpoint_dir": base.checkpoint_dir or "", "output": base.output, "error": base.error}
    filling = [(field, fill) for field, word in places.items() if (fill := _filler(word)) is not None]
    command = list(base.command)
    found = []
    for index, swept in array.members():
        values = dict(swept)
        values[INDEX] = str(index)
        for place, fill in fillers:
            command[place] = fill(values)
        if not command[0]:
            raise ValueError("a job needs a command: a value of the sweep leaves the first word empty")
        if naming is None:
            name = member_name(base.name, index if array.indices else None, swept)
        else:
            name = printable(naming(values))
        found.append(
            unchecked(
                base,
                command=tuple(command),
                name=name,
                **{field: fill(values) for field, fill in filling},
                **(
                    {"batch_size": parse_batch_size(values[base.batch_sweep]), "batch_sweep": ""}
                    if base.batch_sweep
                    else {}
                ),
                array=first,
                array_index=index,
                array_most=array.max_parallel,
                sweep=swept,
            )
        )
    return tuple(found)


def folders_of(template: str, array: Array, most: int) -> Iterator[str]:
    """The checkpoint folders of an array's first members, so many at most."""
    fill = _filler(template)
    for index, swept in islice(array.members(), most):
        yield template if fill is None else fill(dict(swept) | {INDEX: str(index)})


def variables(spec: JobSpec) -> dict[str, str]:
    """What a member of an array finds in its environment; {} for other jobs."""
    if not spec.array:
        return {}
    told = {"HPCDL_ARRAY_JOB": str(spec.array), "HPCDL_ARRAY_INDEX": str(spec.array_index)}
    return told | {f"HPCDL_SWEEP_{re.sub('[^A-Z0-9]', '_', name.upper())}": value for name, value in spec.sweep}


def members_of(specs: Callable[[int], JobSpec | None], number: int) -> Sequence[int]:
    """The ids of the array that a job is in, () where it is in none; `specs`: by id. They follow each other."""
    spec = specs(number)
    if spec is None or not spec.array:
        return ()
    last = spec.array
    while (after := specs(last + 1)) is not None and after.array == spec.array:
        last += 1
    return range(spec.array, last + 1)
