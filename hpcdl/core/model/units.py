"""Small types and their text forms: node names, GPU references, durations, ranges.

What people type is read here, and what they read is written here, in one form everywhere. Imports nothing of hpcdl.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple


class GpuRef(NamedTuple):
    """A GPU by node and its index in that node's inventory; prints as `n3:0`."""

    node: str
    number: int

    def __str__(self) -> str:
        return f"{self.node}:{self.number}"

    @classmethod
    def parse(cls, text: str) -> "GpuRef":
        """`"n3:0"` -> n3:0; ValueError where it is no such text."""
        node, colon, number = text.rpartition(":")
        if not (node and colon and number.isascii() and number.isdigit()):
            raise ValueError(f"{text!r} is not NODE:NUMBER")
        return cls(node, int(number))


def parse_range(text: str) -> tuple[int, int | None]:
    """`"2"` -> (2, 2), `"1:3"` -> (1, 3), `"1:"` -> (1, None); ValueError says what is wrong.

    None as the upper end means "as many as a node has".
    """
    match = re.fullmatch(r"(\d{1,15})(:(\d{0,15}))?", text.strip())
    if match is None:
        dashed = re.fullmatch(r"(\d+)-(\d+)", text.strip())
        long = "" if re.search(r"\d{16}", text) is None else ": 15 digits at most"
        step = f": write {dashed[1]}:{dashed[2]}" if dashed and not long else long
        raise ValueError(f"{text[:100]!r} is not a number or MIN:MAX{step}")
    low = int(match[1])
    high = low if match[2] is None else int(match[3]) if match[3] else None
    if low < 1:
        raise ValueError(f"{text!r}: at least 1 is needed")
    if high is not None and high < low:
        raise ValueError(f"{text!r}: the maximum {high} is below the minimum {low}")
    return low, high


def parse_counts(text: str) -> tuple[int, ...]:
    """`"1,2,4"` -> (1, 2, 4), ascending; ValueError says what is wrong."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 16 and int(part) > 0 for part in parts):
        raise ValueError(f"{text[:100]!r} is not a list of numbers from 1 on, like 1,2,4")
    numbers = sorted({int(part) for part in parts})
    if len(numbers) != len(parts):
        raise ValueError(f"{text!r}: a number is there twice")
    return tuple(numbers)


_UNITS_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """`"90"`, `"90s"`, `"45min"`, `"1.5h"`, `"2d"`, `"1h30m"` -> seconds; ValueError where it is no such text."""
    parts = re.findall(r"(\d{1,12}(?:\.\d{1,12})?)(s|min|m|h|d|)", text.strip().lower())
    if not parts or "".join(number + unit for number, unit in parts) != text.strip().lower():
        raise ValueError(f"{text[:100]!r} is not a duration like 90s, 45min, 2h or 1h30m")
    return sum(float(number) * _UNITS_S[unit or "s"] for number, unit in parts)


_UNITS_KIB = {"k": 1, "m": 1 << 10, "": 1 << 10, "g": 1 << 20, "t": 1 << 30}


def parse_memory_mib(text: str) -> int:
    """`"500M"`, `"32G"`, `"1.5g"`, `"16GiB"`, or `"4096"`, which is MiB -> MiB, rounded up; ValueError where it is no
    such text."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    mib = 0 if match is None else math.ceil(float(match[1]) * _UNITS_KIB[match[2]] / 1024)
    if mib < 1:
        raise ValueError(f"{text[:100]!r} is no size of memory: write 500M or 32G")
    return mib


def memory_text(mib: int) -> str:
    """A size of memory for people: `500 MiB`, `32 GiB`, `1.5 GiB`."""
    return f"{mib} MiB" if mib < 1024 else f"{mib / 1024:.1f}".removesuffix(".0") + " GiB"


def fold_nodes(names: Iterable[str]) -> str:
    """Node names as people write them: `n1 n2 n3 n7` -> `n[1-3,7]`; zero padding is kept."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = re.fullmatch(r"(.*?)(\d{1,15})", name)
        if match is None:
            plain.append(name)
        else:
            padded = len(match[2]) if match[2].startswith("0") else 0
            groups.setdefault((match[1], padded), []).append(int(match[2]))
    parts = list(plain)
    for (prefix, width), numbers in groups.items():
        found = runs(sorted(numbers))
        texts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in found]
        parts.append(
            f"{prefix}{texts[0]}" if len(found) == 1 and "-" not in texts[0] else f"{prefix}[{','.join(texts)}]"
        )
    return ",".join(parts)


_SLURM_TIME = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)


def slurm_seconds(text: str) -> float:
    """A time as Slurm writes it: MINUTES, M:S, H:M:S, DAYS-H, DAYS-H:M, DAYS-H:M:S. Raises ValueError."""
    match = _SLURM_TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:100]!r} is not a time")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    else:
        hours, minutes, seconds = 0, *(*numbers, 0)[:2]
    return 86400.0 * int(days or 0) + 3600.0 * hours + 60.0 * minutes + seconds


def node_list(nodes: Sequence[str]) -> str:
    """The nodes as Slurm writes them: `n[1-3]`; the first one, where the script runs and rank 0 is, stays the first."""
    text = fold_nodes(nodes)
    return text if expand_nodes(text) == tuple(nodes) else ",".join(nodes)


def repeated(counts: Sequence[int]) -> str:
    """`2(x3),1`, of 2, 2, 2, 1."""
    found: list[list[int]] = []
    for number in counts:
        if found and found[-1][0] == number:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in found)


MOST_NODES = 1 << 17
"""A list that names more nodes than this is none."""
_BRACKETS = 8


def expand_nodes(text: str) -> tuple[str, ...]:
    """The nodes of a list: `n[1-3,7],gpu[01-04]`, `a[1-2]b[3-4]`; in its order, leading zeros kept.

    What is no range, or more than MOST_NODES, is taken as it is: a name that nobody knows harms less than a crash.
    """
    if "[" not in text and "," not in text:
        return (text,) if text else ()
    return tuple(name for part in _parts(text) for name in _product(part))


def _parts(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    found, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            found.append(text[start:at])
            start = at + 1
    found.append(text[start:])
    return [part.strip() for part in found if part.strip()]


def _product(text: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", text)
    if match is None or text.count("[") > _BRACKETS:
        return [text]
    ends = _product(match[3]) if match[3] else [""]
    middles = _range(match[2])
    if len(middles) * len(ends) > MOST_NODES:
        return [text]
    return [match[1] + middle + end for middle in middles for end in ends]


def _range(text: str) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,15})-(\d{1,15})\s*", part)
        if match is None or int(match[2]) - int(match[1]) >= MOST_NODES:
            found.append(part.strip())
        else:
            width = len(match[1])
            found.extend(f"{each:0{width}d}" for each in range(int(match[1]), int(match[2]) + 1))
    return found


def natural(name: str) -> list[tuple[int, int, str]]:
    """For sorting names as people do: `n2` comes before `n10`."""
    parts = re.split(r"([0-9]{1,15})", name)
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts if part]


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of those that follow each other, of numbers that go up."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges, `1-3,7`, each once."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(sorted(set(numbers))))


def short_seconds_text(seconds: float) -> str:
    """A duration in a cell: `46s`, `11m25s`, `2h05m`, `3d04h`."""
    whole = int(seconds)
    for unit, size, below in (("d", 86_400, "h"), ("h", 3_600, "m"), ("m", 60, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // {'h': 3_600, 'm': 60, 's': 1}[below]:02d}{below}"
    return f"{whole}s"


def short_band_text(seconds: float, low: float | None, high: float | None) -> str:
    """The same with its band, where it has one: `~3m30s (1-6m)`, `~50s (40s-1m)`."""
    if low is None or high is None:
        return short_seconds_text(seconds)
    ends = [_coarse(each) for each in (low, high)]
    band = f"{ends[0][:-1]}-{ends[1]}" if ends[0][-1] == ends[1][-1] else "-".join(ends)
    return f"~{short_seconds_text(seconds)} ({ends[0] if ends[0] == ends[1] else band})"


def _coarse(seconds: float) -> str:
    """`40s`, `6m`, `3h`, `2d`."""
    unit, size = next(
        ((unit, size) for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)) if seconds >= 0.95 * size), ("s", 1)
    )
    return f"{round(seconds / size)}{unit}"


def seconds_text(seconds: float) -> str:
    """A duration for people: `12 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 100 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


SHORTEST_S = 0.05
"""What is shorter is `0.0 s`."""


def took_text(seconds: float) -> str:
    """The same of what took some time, if little: `under 0.1 s`."""
    return seconds_text(seconds) if seconds >= SHORTEST_S else "under 0.1 s"


def count(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def meant(
    name: str,
    known: Iterable[str],
    otherwise: str,
    *,
    text: Callable[[str], str] = str,
    most: int = 1,
    cutoff: float = 0.6,
) -> str:
    """`did you mean gpus?`, by the nearest of the known names, at most so many, as `text` has them; or `otherwise`.

    Capitals make no difference.
    """
    from difflib import get_close_matches  # few commands need it

    names = {each.casefold(): each for each in known}
    near = [text(names[each]) for each in get_close_matches(name.casefold(), names, most, cutoff)]
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def one_of(name: str, known: Sequence[str]) -> str:
    """Which of a few words was meant; all of them where none is near."""
    return meant(name, known, f"there are {', '.join(known)}")


def gpu_kind(name: str) -> str:
    """The type of a GPU from its driver's name, as profiles name it: `Tesla V100-SXM2-16GB` -> `v100`.

    A name in which no type is recognised is taken as it is, in lower case.
    """
    text = name.lower()
    match = re.search(r"\b[abhklmptv]\d{1,4}[a-z]?\b", text) or re.search(
        r"\b[rg]tx[ -]?[a-z]?\d{3,4}([ -]?(ti|super))?\b", text
    )
    return re.sub(r"[ -]", "", match[0]) if match else text.strip()
