"""What a row of a file asks for, and the job that comes of it: the same rules for every format.

- A plain number N of GPUs is what the user asked for: a static policy gives N, an elastic one 1 to N. `N:N` is N and
  nothing else. N and MAX are GPUs in all, unless the row names its nodes: then they are GPUs on each of them.
- `duration_s` is the run time on N GPUs (MAX, or the largest number of a list) of the first node's type. It becomes
  steps by the profile's rate; a job without a profile gets `rigid`, which is as fast as the log says on N GPUs.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from hpcdl.core.model.job import LARGEST, Sharing
from hpcdl.core.model.profile import MAX_GPUS, MAX_NODES, Point, Profile, ProfileError, find_profile
from hpcdl.core.model.units import count, meant, parse_memory_mib, parse_range
from hpcdl.sim.readers.costs import Costs
from hpcdl.sim.readers.source import MAX_SECONDS, Place, shown
from hpcdl.sim.workload import KINDS, NodeSpell, SimJob, Workload, WorkloadError

YEAR_S: Final = 365 * 86400.0

MOST_SECONDS: Final = 10 * YEAR_S

_TOO_LONG: Final = (
    "a job that trains for more than 10 years on the GPUs that it asks for is a mistake in its length or its rate"
)


@dataclass(frozen=True, slots=True)
class ReaderDefaults:
    """What the caller says where a file leaves it open.

    `profiles`: by casefolded name, as `load_profiles` gives them. `nodes`: those to run on; none: the file's own.
    `gpu_type`: of the GPUs that durations were measured on; "": the first node's. `seed`: for arrivals that a file
    describes, instead of its own. `procs_per_gpu`: processors that stand for one GPU, in formats that know none.
    `costs`: of profiles that say none; None: these cost nothing.
    """

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    nodes: tuple[NodeSpell, ...] = ()
    gpu_type: str = ""
    seed: int | None = None
    procs_per_gpu: int = 1
    costs: Costs | None = None

    def __post_init__(self) -> None:
        if self.procs_per_gpu < 1:
            raise WorkloadError(f"processors per GPU must be 1 or more, got {self.procs_per_gpu}")

    @property
    def kind(self) -> str:
        """The GPU type of durations."""
        return self.gpu_type.strip().lower() or (self.nodes[0].kind if self.nodes else "")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The GPU types of all nodes; that of durations without nodes."""
        return tuple(sorted({spell.kind for spell in self.nodes})) or (self.kind,)

    @property
    def per_node(self) -> int | None:
        """GPUs of the largest node; None without nodes."""
        return max((spell.gpus for spell in self.nodes), default=None)


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs per node and nodes that a row asks for."""

    gpus_min: int
    gpus_max: int | None
    counts: tuple[int, ...] = ()
    nodes: int = 1
    nodes_max: int | None = None
    draw: int | None = None

    @property
    def full(self) -> tuple[int, int]:
        """GPUs per node and nodes that its duration is for."""
        most = self.draw or (self.counts[-1] if self.counts else self.gpus_max or self.gpus_min)
        return most, self.nodes if self.nodes_max is None else self.nodes_max


def parse_asked(place: Place, gpus: object, nodes: object, per_node: int | None) -> GpuRequest:
    """GPUs as `4`, `1:4`, `1|2|4`, `1 2 4` or a list of numbers, and nodes as `2` or `1:2` (None: not said).

    Without nodes, what no node can hold (`per_node` GPUs) is spread evenly over several.
    """
    low, high, counts, draw = _gpus(place, gpus)
    if nodes is not None:
        first, last = _range(place, "nodes", nodes, MAX_NODES)
        if last is None:
            place.wrong("nodes", f"{shown(nodes)}: say a maximum")
        return GpuRequest(low, high, counts, first, None if last == first else last, draw)
    most = counts[-1] if counts else high
    if per_node is None or most is None or most <= per_node or counts:
        return GpuRequest(low, high, counts, draw=draw)
    if draw is not None or low == high:  # so many, no less
        over = -(-most // per_node)
        each = -(-most // over)
        return GpuRequest(1 if draw else each, each, nodes=over, draw=each if draw else None)
    over = -(-low // per_node)
    return GpuRequest(min(low, -(-low // over)), per_node, nodes=over, nodes_max=-(-most // per_node))


def _gpus(place: Place, value: object) -> tuple[int, int | None, tuple[int, ...], int | None]:
    """(min, max, allowed numbers, what a static policy gives)."""
    if isinstance(value, str):
        value = value.strip()
        parts = re.split(r"[|\s]+", value)
        if len(parts) > 1:
            value = parts
    if isinstance(value, list):
        numbers = [place.whole("gpus", each, 1, MAX_GPUS) for each in value]
        if not numbers or len(set(numbers)) != len(numbers):
            place.wrong("gpus", f"expected different numbers of GPUs, got {shown(value)}")
        counts = tuple(sorted(numbers))
        return counts[0], counts[-1], counts, counts[0] if len(counts) == 1 else None
    low, high = _range(place, "gpus", value, MAX_GPUS * MAX_NODES)
    if isinstance(value, str) and ":" in value:
        return low, high, (), None
    return 1, low, (), low


def _range(place: Place, column: str, value: object, limit: int) -> tuple[int, int | None]:
    if isinstance(value, str) and ":" in value:
        try:
            low, high = parse_range(value)
        except ValueError as error:
            place.wrong(column, f"{error}; write N or MIN:MAX")
        place.whole(column, high or low, low, limit)
        return low, high
    number = place.whole(column, value, 1, limit)
    return number, number


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """What a row says of a job, before it is known how fast it is; None: not said. `name`: "" for one of its model."""

    submit_s: float
    model: str
    asked: GpuRequest
    steps: int | None = None
    duration_s: float | None = None
    deadline_s: float | None = None
    user: str = ""
    kind: str = "training"
    name: str = ""
    told: bool = True
    share: Sharing | None = None
    gpu_memory_mib: int | None = None


def parse_row(place: Place, values: Mapping[str, Any], given: ReaderDefaults) -> WorkloadRow:
    """The row that values of a file state by their keys, as texts or as what they are; what is missing is not said."""
    if "model" in values and "profile" in values:
        place.wrong("model, profile", "both are given: they are two words for the name of a profile")
    steps, duration, deadline = (values.get(key) for key in ("steps", "duration_s", "deadline_s"))
    if (steps is None) == (duration is None):
        both = "neither is given" if steps is None else "both are given"
        place.wrong("steps, duration_s", f"{both}: a job has steps, or a duration_s that stands for them")
    told = values.get("told", True)
    if not isinstance(told, bool):
        place.wrong("told", f"expected true or false, got {shown(told)}")
    asked = parse_asked(place, values.get("gpus", 1), values.get("nodes"), given.per_node)
    if "draw" in values:
        asked = replace(asked, draw=place.whole("draw", values["draw"], 1, MAX_GPUS))
    duration_s = None if duration is None else place.number("duration_s", duration)
    if duration_s == 0:
        place.wrong("duration_s", "must be more than 0")
    return WorkloadRow(
        submit_s=place.number("submit_s", values.get("submit_s", 0)),
        model=text_of(place, values, "profile" if "profile" in values else "model"),
        asked=asked,
        steps=None if steps is None else place.whole("steps", steps),
        duration_s=duration_s,
        deadline_s=None if deadline is None else place.number("deadline_s", deadline, -MAX_SECONDS),
        user=text_of(place, values, "user"),
        kind=text_of(place, values, "kind", "training").lower(),
        name=text_of(place, values, "name"),
        told=told,
        share=share_of(place, values),
        gpu_memory_mib=memory_of(place, values),
    )


def check_order(place: Place, row: WorkloadRow, before_s: float, what: str) -> None:
    """WorkloadError for a row that is submitted before the one above it. `what`: the file's word for a row."""
    if row.submit_s < before_s:
        place.wrong("submit_s", f"{row.submit_s:g} is before that of the {what} above, {before_s:g}: sort the {what}s")


def text_of(place: Place, values: Mapping[str, Any], key: str, default: str = "") -> str:
    """A text among the values of a file, without the spaces around it."""
    value = values.get(key, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)  # a user or a job that is called 17
    if not isinstance(value, str):
        place.wrong(key, f"expected text, got {shown(value)}")
    return value.strip()


def memory_of(place: Place, values: Mapping[str, Any]) -> int | None:
    """`gpu_memory` among the values of a file, in MiB; None: not said."""
    text = text_of(place, values, "gpu_memory")
    try:
        return parse_memory_mib(text) if text else None
    except ValueError as error:
        place.wrong("gpu_memory", str(error))


def share_of(place: Place, values: Mapping[str, Any]) -> Sharing | None:
    """`share` among the values of a file; None: it shares with nobody."""
    text = text_of(place, values, "share")
    try:
        return Sharing.from_text(text) if text else None
    except ValueError as error:
        place.wrong("share", str(error))


@dataclass(slots=True)
class WorkloadBuilder:
    """The jobs of a file as they are read, and what was assumed where it said nothing.

    `place`: where the reader is. `notes`: how often each was noted, and its first line. `costs_used`: a profile took
    those that are given.
    """

    place: Place
    given: ReaderDefaults
    jobs: list[SimJob] = field(default_factory=list)
    notes: dict[str, tuple[int, int]] = field(default_factory=dict)
    costs_used: bool = False

    def note(self, text: str) -> None:
        """One more job for which this was assumed, or that was left out."""
        times, first = self.notes.get(text, (0, self.place.line))
        self.notes[text] = (times + 1, first)

    def workload(self, source: str, none: str, *, name: str = "", column: str = "", rebase: bool = False) -> Workload:
        """The workload. `none`: what to say where it has no job; `rebase`: a log, whose first submit becomes 0."""
        path = self.place.path
        if not self.jobs:
            Place(path).wrong(column, none)
        if self.given.costs is not None and not self.costs_used:
            Place(path).wrong("", "every profile has costs of its own: leave out --startup, --resume and --save")
        jobs = _rebased(self.jobs) if rebase else tuple(self.jobs)
        notes = tuple(
            f"{note} ({count(times, 'job')}{f', first in line {line}' if line else ''})"
            for note, (times, line) in self.notes.items()
        )
        return Workload(name or path.name, jobs, self.given.nodes, source, notes)

    def add(self, row: WorkloadRow) -> None:
        """The job of a row, with its profile and steps. WorkloadError names file and line."""
        place, given, asked = self.place, self.given, row.asked
        if row.kind not in KINDS:
            place.wrong("kind", f"expected {' or '.join(KINDS)}, got {shown(row.kind)}")
        if row.deadline_s is not None and row.deadline_s <= row.submit_s:
            place.wrong(
                "deadline_s",
                f"{row.deadline_s:g} is not after the submit at {row.submit_s:g}: it is a moment on the clock of "
                "submit_s",
            )
        try:
            profile = self.with_costs(self._profile(row))
        except (ModelUnknown, ProfileError) as unknown:
            place.wrong("model", str(unknown))
        gpus, nodes = asked.full
        self._note_kinds(profile)
        steps = row.steps if row.steps is not None else _steps(row, profile.on(given.kind), gpus, nodes)
        if steps > LARGEST:
            place.wrong("duration_s", f"is {steps} steps, more than {LARGEST}")
        needs_s = steps / max(profile.on(kind).rate(gpus, nodes) for kind in given.kinds)
        if needs_s > MOST_SECONDS:
            length = "steps" if row.steps is not None else "duration_s"
            place.wrong(length, f"{_TOO_LONG}, got {needs_s / YEAR_S:.3g} years")
        self.add_job(
            submit_s=row.submit_s,
            name=row.name or f"{row.model or 'job'}/{len(self.jobs) + 1}",
            profile=profile,
            steps=steps,
            gpus_min=asked.gpus_min,
            gpus_max=asked.gpus_max,
            gpus_counts=asked.counts,
            nodes=asked.nodes,
            nodes_max=asked.nodes_max,
            user=row.user,
            kind=row.kind,
            deadline_s=row.deadline_s,
            told=row.told,
            share=row.share,
            gpu_memory_mib=row.gpu_memory_mib,
            draw=asked.draw,
        )

    def with_costs(self, profile: Profile) -> Profile:
        """The profile with the costs that are given, if it has none of its own; and a note of it."""
        costs = self.given.costs
        found = None if costs is None else costs.on(profile)
        if found is None:
            return profile
        self.costs_used = True
        self.note(f"costs as given, since its profile has none: {costs}")
        return found

    def add_job(self, **values: Any) -> None:
        """A job of these values of `SimJob`. WorkloadError names file and line."""
        try:
            self.jobs.append(SimJob(**values))
        except WorkloadError as error:
            self.place.wrong("", str(error))

    def _profile(self, row: WorkloadRow) -> Profile:
        if row.kind == "inference" and row.model:
            own = known_model(self.given.profiles, f"{row.model}-inference")
            if own is not None:
                return own
        try:
            found = find_model(self.given.profiles, row.model)
        except ModelUnknown as unknown:
            if row.duration_s is None or unknown.ambiguous:
                raise
            self.note(
                f"{f'model {shown(row.model)} has' if row.model else 'no model, so'} no profile: the job runs for its "
                "duration on the GPUs that it asked for, in proportion on fewer, no faster on more"
            )
            return rigid(row.model or "no profile", *row.asked.full)
        return as_inference(found) if row.kind == "inference" else found

    def _note_kinds(self, profile: Profile) -> None:
        known = {kind for kind, _ in profile.kinds}
        for kind in self.given.kinds if known else ():
            if kind and kind not in known:
                self.note(
                    f"{profile.name} was not measured on {shown(kind)}: there it has its default curve "
                    f"(measured: {', '.join(sorted(known))})"
                )


def _steps(row: WorkloadRow, profile: Profile, gpus: int, nodes: int) -> int:
    """Its duration in steps; the start-up is a part of the duration."""
    assert row.duration_s is not None
    return max(1, round(max(0.0, row.duration_s - profile.startup_s) * profile.rate(gpus, nodes)))


def _rebased(jobs: Iterable[SimJob]) -> tuple[SimJob, ...]:
    """The jobs of a log by their submits, the first of which becomes 0. (Logs promise no order.)"""
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    begin = ordered[0].submit_s
    return tuple(
        replace(
            job,
            submit_s=job.submit_s - begin,
            deadline_s=None if job.deadline_s is None else job.deadline_s - begin,
        )
        for job in ordered
    )


# --- from the name of a model in a file to its profile, and profiles for jobs that have none --------------------------

_BATCH = re.compile(r"\s*\(batch size \d+\)$")

_NODES = 1_024


class ModelUnknown(ValueError):
    """No profile has that name, or several might be meant (`ambiguous`); the message lists the candidates."""

    def __init__(self, message: str, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


def known_model(profiles: Mapping[str, Profile], name: str) -> Profile | None:
    """The profile of that name or alias, whatever its case and spaces; `(batch size N)` may be left out.

    None if there is none, ModelUnknown if there are several that differ only in their batch size.
    """
    wanted = " ".join(name.split())
    if not wanted:
        return None
    found = find_profile(profiles, wanted)
    if found is not None:
        return found
    same = [profile for key, profile in profiles.items() if _BATCH.sub("", key) == wanted.casefold()]
    if len(same) > 1:
        names = ", ".join(repr(profile.name) for profile in same)
        raise ModelUnknown(f"{name!r} may be any of {names}: write one of them in full", ambiguous=True)
    return same[0] if same else None


def find_model(profiles: Mapping[str, Profile], name: str) -> Profile:
    """As `known_model`, but ModelUnknown with the nearest names where there is none."""
    found = known_model(profiles, name)
    if found is not None:
        return found
    if not name:
        raise ModelUnknown("is empty: name a profile, or give a duration_s instead of steps")
    otherwise = f"there are {', '.join(map(repr, sorted(profiles)[:8]))}"
    if not profiles:
        otherwise = "there are no profiles: give some with --profiles, or a duration_s instead of steps"
    hint = meant(name.casefold(), map(str.casefold, profiles), otherwise, text=repr, most=3, cutoff=0.5)
    raise ModelUnknown(f"no profile is called {name[:80]!r}; {hint}")


@lru_cache(maxsize=4096)
def rigid(name: str, gpus: int, nodes: int = 1) -> Profile:
    """A profile that says only what a log does: 1 step/s on `nodes` x `gpus` GPUs, proportional below, flat above."""
    points: tuple[Point, ...] = ((nodes, gpus, 1.0),)
    source = f"assumed: the run time of a log on {nodes} x {gpus} GPUs, proportional below"
    return Profile(name=name, points=points, source=source)


@lru_cache(maxsize=4096)
def as_inference(profile: Profile) -> Profile:
    """Its rates without a communication penalty (GENIE: Comm = 0): n GPUs are n times one, on any number of nodes."""
    return replace(
        profile,
        name=f"{profile.name}-inference",
        aliases=(),
        points=_linear(profile.rate(1)),
        kinds=tuple((kind, _linear(profile.on(kind).rate(1))) for kind, _ in profile.kinds),
        source=f"{profile.source}; inference: linear from one GPU, no communication".lstrip("; "),
    )


def _linear(one: float) -> tuple[Point, ...]:
    # Between these four corners the interpolation, linear along both axes, gives nodes * gpus * one.
    return tuple((nodes, gpus, one * nodes * gpus) for nodes in (1, _NODES) for gpus in (1, MAX_GPUS))
