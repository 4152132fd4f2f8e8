"""What jobs show while they run: how fast they train on which GPUs, and how long their starts and suspends take.

Only effects call what changes the world. What was seen is part of it, so a replay learns the same; `Profiles` makes
profiles of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from hpcdl.core.fold.trials import KEPT_RUNS, LIKE, differences, shows_rate, trial_of, warm_up, with_report
from hpcdl.core.model.frozen import changed
from hpcdl.core.model.incarnation import Incarnation, InPlaceRescale, Part, Placement, TrainingStart
from hpcdl.core.model.job import observed_as
from hpcdl.core.model.plan import Arrival
from hpcdl.core.model.profile import (
    AttemptRate,
    MetricCurve,
    Observation,
    Observations,
    Point,
    Profile,
    StepSums,
    Timing,
    UsualJob,
)
from hpcdl.core.model.structure import ModelStructure
from hpcdl.core.model.units import gpu_kind
from hpcdl.core.model.world import Job, World

MEMORY_S = 24 * 3600.0
"""Seconds of training after which older observations count less: machines and scripts change."""

MEMORY_TIMES = 30.0
"""So many starts or suspends after which older ones count less."""

POINTS = 64
"""Points of a metric that are kept."""

FAR_ENOUGH = 2
"""A newer curve of a metric takes the place of an older one of up to so many times as many steps."""

KEPT = 1_000
"""Kinds of jobs (by model, batch size and script) of which is kept what was seen; those that ran last."""

ARRIVALS = 64
"""Jobs whose submits say how often jobs come."""

KEPT_BATCHES = 32
"""Batch sizes of which is kept what was seen, of each type; those that ran last."""

KEPT_RATES = 64
"""Numbers of GPUs, for each of these."""

OF_A_START = ("startup_s", "resume_s", "resume_up_s", "move_s")
"""Kinds of times that a start shows."""

OF_AN_END = "end_s"
"""Kind of time that the end of a script shows."""

GRAIN = 1.25
"""The seconds that a rate was seen for are rounded to powers of it."""

RATIO = 1.05
"""In whose powers a measured rate is compared with a planned one."""

SHORTEST_S = 1.0
"""So many seconds of training show a rate. The first step of a trainer is reported at once: of what it computes or
loads after the report nothing was seen, and 1 step in 6 ms would be the rate of a job of 7 steps/s."""

LEAST_S = 5.0
"""A suspend ends a stretch of training within a step; from so many seconds on that is no matter."""


def observe(world: World, job: Job, incarnation: Incarnation, step: int, at: float) -> AttemptRate | None:
    """Adds the steps since the last report to what is known of jobs like this one; what the attempt then showed."""
    progress, placement = incarnation.progress, incarnation.placement
    shown = None if progress is None else progress.rate
    if progress is None or placement is None or step <= progress.step:
        return shown
    if incarnation.is_background or (world.backgrounds and not world.backgrounds.keys().isdisjoint(placement.gpus)):
        return shown  # the other on its GPUs slows it down
    since, at = progress.at, max(progress.at, at)  # a step that was done before the last report, which did not say so
    if incarnation.stop is not None:
        at = incarnation.stop.at  # from then on it finishes a step, and saves
        if at - since < LEAST_S:
            return shown
    if incarnation.rescale_at is not None or incarnation.broken_at is not None:
        return shown  # on which nodes that was, nobody can say
    if incarnation.members and len(incarnation.members) < len(placement.shares):  # the others warm up
        placement = replace(placement, shares=tuple(s for s in placement.shares if s.node in incarnation.members))
    if incarnation.ending is not None or len({len(share.gpus) for share in placement.shares}) != 1:
        return shown  # it may have been killed, or the placement is not one that a curve has a place for
    spot = (_kind_on(world, placement), len(placement.shares), placement.per_node)
    steps, seconds = float(step - progress.step), at - since
    if shown is None or _spot(shown) != spot:
        shown = AttemptRate(job.id, incarnation.number, *spot)
    run = with_report(shown, steps, seconds)
    if run is not shown:
        _learn_rate(world, job, run, shown.counted)
    return run


def _learn_rate(world: World, job: Job, run: AttemptRate, counted_before: StepSums) -> None:
    """Adds what counts of an attempt to what is known on its number of GPUs. `counted_before`: what of it did so far;
    some of that may be its warm-up, as shows now."""
    spot, counted = _spot(run), run.counted
    steps, seconds = counted.steps - counted_before.steps, counted.seconds - counted_before.seconds
    before = world.observed.get(job.spec.learns_as, Observations())
    others = []
    for known in before.rates:
        if _spot(known) == spot:
            weight = min(1.0, MEMORY_S / known.seconds)
            steps, seconds = steps + weight * known.steps, seconds + weight * known.seconds
        else:
            others.append(known)
    steps, seconds = max(counted.steps, steps), max(counted.seconds, seconds)
    rates = (*others[-KEPT_RATES + 1 :], Observation(*spot, steps, seconds))
    runs = [each for each in before.runs if (each.job, each.attempt) != (run.job, run.attempt) or _spot(each) != spot]
    runs = [*runs[-KEPT_RUNS + 1 :], run]
    _keep(world, job, replace(before, rates=rates, runs=tuple(runs), differ=differences(runs)))


def _spot(seen: Observation | AttemptRate) -> tuple[str, int, int]:
    return seen.kind, seen.nodes, seen.gpus


def observe_start(world: World, job: Job, incarnation: Incarnation, at: float) -> None:
    """Its training loop begins now: adds how long that took with the GPUs that it waited for."""
    placement, since, before = incarnation.placement, incarnation.granted_at, job.last.placement
    if placement is None or since is None or at < since:
        return
    if before is None:
        what = "startup_s"
    elif before.nodes != placement.nodes:
        what = "move_s"
    else:
        what = "resume_up_s" if len(placement.gpus) > len(before.gpus) else "resume_s"
    _took(world, job, what, at - since)


def observe_save(world: World, job: Job, incarnation: Incarnation, at: float) -> None:
    """It trained, was asked to suspend, and is gone now: adds how long that took."""
    if incarnation.stop is None or incarnation.progress is None or at < incarnation.stop.at:
        return
    target = world.targets.get(job.id)
    aim = None if target is None else target.placement
    moves = aim is not None and aim.nodes != incarnation.nodes
    _took(world, job, "move_save_s" if moves else "save_s", at - incarnation.stop.at)


def observe_end(world: World, job: Job, incarnation: Incarnation, at: float) -> None:
    """Its script ended by itself after its last step: adds how long that took."""
    exited = [part.exited_at for part in incarnation.parts if part.exited_at is not None]
    if incarnation.end_at is not None and max(exited, default=at) >= incarnation.end_at:
        _took(world, job, OF_AN_END, max(exited, default=at) - incarnation.end_at)


def observe_metric(world: World, job: Job) -> None:
    """An attempt of it ended: keeps how its metric went, for the jobs like it that come.

    Not where the curve that is kept is of a job that went more than twice as far: that one says more.
    """
    points = tuple(sorted(dict(job.progress.accuracy).items()))
    if not points:
        return
    before = world.observed.get(job.spec.learns_as, Observations())
    known = before.metric
    if known is None or known.job == job.id or FAR_ENOUGH * points[-1][0] >= known.points[-1][0]:
        _keep(world, job, replace(before, metric=MetricCurve(job.id, points)))


def end_s(world: World, job: Job) -> float | None:
    """What the ends of its script took, after the last step; None: none was seen."""
    seen = world.observed.get(job.spec.learns_as)
    took = None if seen is None else next((each for each in seen.times if each.what == OF_AN_END), None)
    return None if took is None else _mean(took).seconds


def observe_structure(world: World, job: Job, structure: ModelStructure) -> None:
    """Its trainer says what its model is made of: that is kept of its type."""
    before = world.observed.get(job.spec.type_name, Observations())
    if before.structure != structure:
        _put_last(world, job.spec.type_name, replace(before, structure=structure, infers=job.spec.infers))
        _keep_few(world)


def observe_rescale(world: World, job: Job, incarnation: Incarnation, seconds: float) -> None:
    """Its ranks have formed a new membership in place: adds how long they did not train."""
    before, after = incarnation.members_before, len(incarnation.members)
    if before and before != after and math.isfinite(seconds) and seconds >= 0:
        _took(world, job, "grow_s" if after > before else "shrink_s", seconds)


def observe_join(world: World, job: Job, part: Part, at: float) -> None:
    """Its processes on one more node can be taken in: adds how long they took, while the others trained."""
    if part.asked_at and at >= part.asked_at:
        _took(world, job, "join_s", at - part.asked_at)


def began(incarnation: Incarnation, at: float) -> Incarnation:
    """The incarnation, of which is known since `at` at the latest that it trains, with what its start took."""
    if incarnation.training_start is not None:
        return incarnation
    since = incarnation.holds_since
    gate_s = 0.0
    if incarnation.warm:
        gates = [part.gate_at - incarnation.requested_at for part in incarnation.parts if part.at_gate]
        gate_s = max(gates, default=0.0)
    return changed(incarnation, training_start=TrainingStart(at, max(0.0, at - since) + max(0.0, gate_s)))


def reformed(incarnation: Incarnation, seconds: float, at: float) -> Incarnation:
    """The incarnation, whose ranks trained on at `at` in a new membership, after `seconds` without progress."""
    cost_s = max(0.0, seconds) if math.isfinite(seconds) else 0.0
    return changed(incarnation, last_rescale=InPlaceRescale(at, cost_s))


def observations_of(
    world: World, key: str, own_starts: bool = True, group: UsualJob | None = None
) -> Observations | None:
    """What was seen of jobs with this `learns_as`, with the usual times where they showed none; None without a step.

    Rounded, so that it stays the same while what is reported is no news. `own_starts`: once one kind of its starts is
    known, others' say nothing of the rest. `group`: what is usual of jobs like these; it comes before all jobs' times.
    """
    seen = world.observed.get(key)
    if seen is None:
        return None
    runs = {spot: [run for run in seen.runs if _spot(run) == spot] for spot in map(_spot, seen.rates)}
    rates = tuple(each for each in seen.rates if _shows_rate(each, runs[_spot(each)]))
    if not rates:
        return None
    own = {timing.what for timing in seen.times}
    if own_starts and not own.isdisjoint(OF_A_START):
        own.update(OF_A_START)
    usual = {timing.what: timing for timing in world.usual_times}
    if group is not None and group.start_s is not None:
        usual.update((what, Timing(what, 1.0, group.start_s)) for what in OF_A_START)
    if group is not None and group.save_s is not None:
        usual.setdefault("save_s", Timing("save_s", 1.0, group.save_s))
    others = (timing for what, timing in usual.items() if what not in own)
    times = list(map(_mean, (*seen.times, *others)))
    warms_up = warm_up(seen.runs)
    if warms_up is not None:
        times.append(warms_up)
    warm_s = 0.0 if warms_up is None else warms_up.seconds
    rounded = tuple(map(_rounded, rates))
    differ = [each.differ for name, each in islice(reversed(world.observed.items()), LIKE) if name != key]
    trials = [
        trial_of(shown, each.steps / each.seconds, warm_s, seen.differ, differ)
        for each in rounded
        if (shown := [run for run in runs[_spot(each)] if shows_rate(run)])
    ]
    return Observations(rounded, tuple(times), trials=tuple(trials))


def _shows_rate(seen: Observation, runs: Sequence[AttemptRate]) -> bool:
    """`runs`: the last attempts there; none where it is long ago."""
    warm_s = sum(run.warm.seconds for run in runs)
    return seen.seconds + warm_s >= SHORTEST_S and (not runs or any(map(shows_rate, runs)))


def observations_of_type(world: World, type_name: str) -> tuple[tuple[int, Observations], ...]:
    """What was seen of jobs of this type, by batch size, ascending; those of which no rate is known left out."""
    of_type = world.observed.get(type_name, Observations())
    found = ((batch, observations_of(world, observed_as(type_name, batch))) for batch in sorted(of_type.batches))
    return tuple((batch, seen) for batch, seen in found if seen is not None)


def slower(profile: Profile, seen: Observations) -> Profile:
    """The profile, with what starts of such jobs were seen to take where that is clearly longer than it says."""
    took = {each.what: _mean(each).seconds for each in seen.times if each.what in OF_A_START}
    if not took:
        return profile
    said = {what: getattr(profile, what) for what in OF_A_START}
    if "resume_s" not in took and "startup_s" in took:  # both are imports mostly
        ratio = took["startup_s"] / profile.startup_s if profile.startup_s else 1.0
        longest = took["startup_s"] + profile.resume_s  # whatever the ratio to a start said to take next to nothing
        took["resume_s"] = min(ratio * profile.resume_s, longest) if profile.resume_s else took["startup_s"]
    longer = {each: took[each] for each in took if said[each] is not None and took[each] > GRAIN * said[each]}
    return replace(profile, **longer) if longer else profile  # type: ignore[arg-type]  # seconds only


def measured(profile: Profile, seen: Observations) -> Profile:
    """A planned profile with the rates that were seen of such jobs where these are others.

    What slows a number of GPUs is taken to slow those above it as much (slower GPUs); those below keep their plans
    (a slower network says nothing of them), until they are seen. Ratios in steps of RATIO, so that it stays the same
    while what is reported is no news.
    """
    kinds: dict[str, dict[tuple[int, int, int], Observation]] = {}
    for each in seen.rates:
        if each.seconds >= LEAST_S and each.steps > 0:
            kinds.setdefault(each.kind, {})[each.nodes * each.gpus, each.nodes, each.gpus] = each
    if not kinds:
        return profile
    usual = max(kinds, key=lambda kind: (sum(each.seconds for each in kinds[kind].values()), kind))
    curves = {kind: _as_measured(profile.on(kind), kinds[kind]) for kind in kinds}
    others = dict(profile.kinds) | {kind: points for kind, points in curves.items() if kind}
    found = replace(profile, points=curves[usual], kinds=tuple(sorted(others.items())))
    return profile if all(points == profile.on(kind).points for kind, points in curves.items()) else found


def _as_measured(profile: Profile, seen: Mapping[tuple[int, int, int], Observation]) -> tuple[Point, ...]:
    ratios = []
    for (size, nodes, gpus), each in sorted(seen.items()):
        ratio = each.steps / each.seconds / profile.rate(gpus, nodes)
        ratios.append((size, RATIO ** round(math.log(ratio, RATIO))))
    if all(ratio == 1.0 for _, ratio in ratios):
        return profile.points
    places = {(nodes, gpus) for nodes, gpus, _ in profile.points} | {(nodes, gpus) for _, nodes, gpus in seen}
    # Also just below what was seen, where the planned curve goes on.
    places |= {(nodes, gpus - 1) for _, nodes, gpus in seen if gpus > 1}
    points = []
    for nodes, gpus in sorted(places):
        ratio = next((each for size, each in reversed(ratios) if size <= nodes * gpus), 1.0)
        points.append((nodes, gpus, ratio * profile.rate(gpus, nodes)))
    return tuple(points)


def _rounded(seen: Observation) -> Observation:
    seconds = GRAIN ** round(math.log(seen.seconds, GRAIN))
    return Observation(seen.kind, seen.nodes, seen.gpus, float(f"{seen.steps / seen.seconds:.3g}") * seconds, seconds)


def _mean(timing: Timing) -> Timing:
    """As if it had been seen once."""
    return Timing(timing.what, 1.0, float(f"{timing.seconds / timing.times:.2g}"))


def arrivals_of(world: World) -> tuple[Arrival, ...]:
    """The submits of the last ARRIVALS jobs, the newest at the end."""
    together: dict[float, list[Job]] = {}
    for job in islice(reversed(world.jobs.values()), ARRIVALS):
        together.setdefault(job.submitted_at, []).append(job)
    return tuple(_arrival(at, together[at]) for at in sorted(together))


def _arrival(at: float, jobs: Sequence[Job]) -> Arrival:
    ended = [
        job.finished_at - job.first_start_at
        for job in jobs
        if job.finished_at is not None and job.first_start_at is not None
    ]
    gpus = sum(job.spec.gpus_min * job.spec.nodes for job in jobs) / len(jobs)
    return Arrival(at, gpus, sum(ended) / len(ended) if ended else None)


def thinned(points: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """The points, without every second one of the older half once there are too many: few show a curve."""
    half = POINTS // 2
    return points if len(points) <= POINTS else points[:-half:2] + points[-half:]


def _took(world: World, job: Job, what: str, seconds: float) -> None:
    before = world.observed.get(job.spec.learns_as, Observations())
    _keep(world, job, replace(before, times=_with(before.times, what, seconds)))
    world.usual_times = _with(world.usual_times, what, seconds)


def _with(times: Iterable[Timing], what: str, seconds: float) -> tuple[Timing, ...]:
    many = 1.0
    others = []
    for known in times:
        if known.what == what:
            weight = min(1.0, MEMORY_TIMES / known.times)
            many, seconds = many + weight * known.times, seconds + weight * known.seconds
        else:
            others.append(known)
    return (*others, Timing(what, many, seconds))


def _keep(world: World, job: Job, seen: Observations) -> None:
    """Puts it at the end, behind what is known of its type; where there is too much, drops what came first."""
    batch, key = job.spec.batch_size, job.spec.learns_as
    if batch is not None:
        of_type = world.observed.get(job.spec.type_name, Observations())
        batches = [each for each in of_type.batches if each != batch]
        of_type = replace(of_type, batches=(*batches[-KEPT_BATCHES + 1 :], batch), infers=job.spec.infers)
        for old in batches[: -KEPT_BATCHES + 1]:
            world.observed.pop(observed_as(job.spec.type_name, old), None)
        _put_last(world, job.spec.type_name, of_type)
    _put_last(world, key, seen)
    _keep_few(world)


def _keep_few(world: World) -> None:
    while len(world.observed) > KEPT:
        del world.observed[next(iter(world.observed))]


def _put_last(world: World, key: str, seen: Observations) -> None:
    world.observed.pop(key, None)
    world.observed[key] = seen


def _kind_on(world: World, placement: Placement) -> str:
    """The type of the GPUs of a placement, "" where they are of several."""
    kinds = {
        gpu_kind(gpu.name)
        for share in placement.shares
        if (node := world.nodes.get(share.node)) is not None
        for gpu in node.gpus
        if gpu.index in share.gpus
    }
    return kinds.pop() if len(kinds) == 1 else ""
