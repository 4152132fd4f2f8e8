"""From options of a submit to an array, and from an array to its lines on a terminal."""

from collections.abc import Sequence

from hpcdl.core.arrays import Array, Steps, check_places, named
from hpcdl.core.jobspec import JobSpec

Sweeps = tuple[tuple[str, tuple[str, ...]], ...]


def with_sweeps(command: Sequence[str], sweep: Sweeps) -> tuple[str, ...]:
    """The command with `--NAME {NAME}` at its end for each sweep that no word of it names."""
    known = named(command)
    more = [word for name, _ in sweep if name not in known for word in (f"--{name}", f"{{{name}}}")]
    return (*command, *more)


def array_of(indices: tuple[Steps, ...], sweep: Sweeps, most: int | None) -> Array | None:
    """The array that the options ask for, None for a single job. Raises ValueError."""
    if not indices and not sweep:
        if most is not None:
            raise ValueError("--max-parallel needs --array or --sweep")
        return None
    return Array(indices, sweep, most or 0)


def checked(spec: JobSpec, array: Array | None) -> None:
    """Raises ValueError where a word names what the array does not have."""
    if array is not None:
        check_places(spec, array)


def plain(array: Array) -> dict[str, object]:
    """As the API takes it."""
    parts = [
        str(first) if first == last else f"{first}-{last}" + (f":{step}" if step != 1 else "")
        for first, last, step in array.indices
    ]
    found: dict[str, object] = {"indices": ",".join(parts)} if parts else {}
    if array.sweep:
        found["sweep"] = {name: list(values) for name, values in array.sweep}
    if array.max_parallel:
        found["max_parallel"] = array.max_parallel
    return found
