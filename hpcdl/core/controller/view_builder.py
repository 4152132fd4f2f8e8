"""From the world to what a policy sees of it. What has not changed since the last view is taken from there.

A view costs what changed, with thousands of jobs and nodes. All that is kept here is a cache: a builder that starts
anew makes the same view. The Controller builds one for each decision; `model/plan.py` says what is in it.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcdl.core.controller.history import Group, Histories, groups_of
from hpcdl.core.controller.type_profiles import TypeProfiles
from hpcdl.core.fold.fold import ChangeSet
from hpcdl.core.fold.observations import arrivals_of, measured, observations_of, slower
from hpcdl.core.fold.observations import end_s as script_end_s
from hpcdl.core.model.health import Avoided
from hpcdl.core.model.incarnation import IncarnationState
from hpcdl.core.model.job import LARGEST
from hpcdl.core.model.plan import JobView, NodeView, Profiles, Standing, View, held_on
from hpcdl.core.model.profile import MetricCurve, MetricPoints, Observations, Profile, Timing, UsualJob
from hpcdl.core.model.sharing import known_memory_mib
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import count, gpu_kind
from hpcdl.core.model.world import GpuInfo, Job, Node, Target, World, can_suspend, held_text
from hpcdl.core.rules import time_limits
from hpcdl.core.rules.dependencies import waiting_why
from hpcdl.core.rules.exemption import STARTS, Exemption, exemption, lifts
from hpcdl.core.rules.gpu_memory import LargestGpu, largest_gpu_here, needed_mib


@dataclass(frozen=True, slots=True)
class _JobInputs:
    """A JobView and what it was made of."""

    job: Job
    target: Target | None
    profile: Profile | None
    view: JobView
    exempt: Exemption | None = None
    earlier: MetricPoints = ()  # as `Profiles.metric_before`


_Alike = tuple[tuple[Group, ...], str | None]
"""What jobs of which the same is learnt have in common: their groups, and the profile that they name."""


@dataclass(frozen=True, slots=True)
class _LearntProfile:
    """A profile that was learnt, None where nothing could be, and of what."""

    own: Observations
    usual: tuple[Timing, ...]
    group: UsualJob | None
    seen: Observations | None
    profile: Profile | None


class Views:
    """Makes views, one after another, of one world as it goes on. Only a cache: `Views().build` gives the same."""

    def __init__(self, exempt_starts: float = STARTS) -> None:
        """`exempt_starts`: as `exemption.exemption` takes it."""
        self._exempt_starts = exempt_starts
        self._exempt: dict[int, float] = {}  # by job, when what its view says of that ends by itself
        self._jobs: dict[int, _JobInputs] = {}
        self._standing = StandingNodes()
        self._learnt_of: dict[tuple[Group, ...], _LearntProfile] = {}
        self._types = TypeProfiles()
        self._histories = Histories()
        self._named_of: dict[tuple[str, str], tuple[Observations, Profile, Profile]] = {}
        self._sorted = SortedJobs()
        self._restless: set[int] = set()
        self._learns: dict[int, _Alike] = {}
        self._alike: dict[_Alike, set[int]] = {}
        self._last_learnt: dict[_Alike, tuple[Profile | None, UsualJob | None, MetricCurve | None]] = {}
        self._turns = Turns()
        self._large: set[int] = set()  # jobs that say how much memory a GPU must have
        self._largest: LargestGpu | None = None  # None: nobody has asked for it since the nodes changed
        self._there: ViewNodes | None = None
        self._made_with: tuple[int, bool, Profiles] | None = None

    def build(self, world: World, profiles: Profiles, now: float, touched: ChangeSet | None = None) -> View:
        """The view of a world. Jobs that only wait for their processes to go are `leaving`.

        `touched`: all to which anything has happened since the view before; None: it may have been anything.
        """
        changed_nodes = None if touched is None else touched.nodes
        nodes_changed = changed_nodes is None or bool(changed_nodes)
        if nodes_changed or self._there is None:
            self._there = self._standing.look(world, None if self._there is None else changed_nodes)
            self._learnt_of.clear()  # what is learnt is for the nodes that there are
            self._largest = None
            self._types = TypeProfiles()
        there = self._there
        largest = there.largest
        made_with = (largest, world.stopping, profiles)
        if self._made_with is None or self._made_with != made_with:
            self._made_with = made_with
            self._jobs.clear()
            touched = None
        changed = None if touched is None else touched.jobs
        if len(self._learnt_of) > 2 * len(world.observed) + 100:
            self._learnt_of.clear()
        if self._exempt_starts:  # papers learn as they did
            self._histories.look(world, changed)
        if changed is None:
            changed = {*self._sorted.jobs, *world.active}
        over = [number for number, until in self._exempt.items() if until <= now]
        looked_at = self._restless.union(changed, over, self._learnt_anew(world, profiles))
        if nodes_changed:
            looked_at |= self._large
        for number in looked_at:
            job = world.jobs[number] if number in world.active else None
            self._turns.note(world, job, number, "" if job is None else self._blocked(world, job, now))
        for number in sorted(looked_at | self._turns.settle()):
            self._update(world, number, profiles, now, largest)
        arrivals = arrivals_of(world) if self._exempt_starts else ()
        view = View(now, there.nodes, self._sorted.all(), world.objective, there.bare, world.gaps, arrivals)
        vars(view).update(self._sorted.known() | there.known)
        vars(view)["free"] = self._standing.free(self._sorted.changed_nodes(), view.held)
        return view

    def exempt_ends(self, now: float) -> list[float]:
        """When the first attempt of the last view that is exempt will be so no more; empty where none is."""
        ends = [until for until in self._exempt.values() if now < until < math.inf]
        return [min(ends)] if ends else []

    def _update(self, world: World, number: int, profiles: Profiles, now: float, largest: int) -> None:
        if number not in world.active:
            self._jobs.pop(number, None)
            self._sorted.drop(number)
            self._restless.discard(number)
            self._exempt.pop(number, None)
            self._large.discard(number)
            if (key := self._learns.pop(number, None)) is not None:
                self._alike[key].discard(number)
            return
        key = self._learns.get(number)
        if key is None:
            spec = world.jobs[number].spec
            key = self._learns[number] = (groups_of(spec), spec.profile)
            self._alike.setdefault(key, set()).add(number)
            if spec.gpu_memory_mib is not None:
                self._large.add(number)
        view = self._job(world, world.jobs[number], key[0], profiles, now, largest)
        self._sorted.put(view)
        # What blocks a job may pass by itself; but its turn comes with a change of another member of its array.
        known = self._jobs[number].exempt
        if view.blocked and view.blocked != self._turns.wants(world.jobs[number]):
            self._restless.add(number)
        elif known is not None and known.guess and known.suspend_until > now:
            self._restless.add(number)  # what a start of it takes may be seen of others
        else:
            self._restless.discard(number)
        until = [] if known is None else [at for at in (known.suspend_until, known.rescale_until) if at > now]
        if until:
            self._exempt[number] = min(until)
        else:
            self._exempt.pop(number, None)

    def _blocked(self, world: World, job: Job, now: float) -> str:
        """As `blocked_why`; the largest GPU is looked for once while the nodes stay."""
        if self._largest is None and job.spec.gpu_memory_mib is not None:
            self._largest = largest_gpu_here(world)
        return blocked_why(world, job, now, self._largest)

    def _learnt_anew(self, world: World, profiles: Profiles) -> set[int]:
        """The jobs of which something else is learnt than at the last view, from jobs like them."""
        found: set[int] = set()
        for key in [key for key, numbers in self._alike.items() if not numbers]:
            del self._alike[key]
            self._last_learnt.pop(key, None)
        for key, numbers in self._alike.items():
            job = world.jobs[next(iter(numbers))]
            seen = world.observed.get(job.spec.learns_as)
            metric = None if seen is None else seen.metric
            learnt = (self._profile(world, job, key[0], profiles), self._histories.usual(key[0]), metric)
            known = self._last_learnt.get(key, (None, None, None))
            if learnt[0] is not known[0] or learnt[1] != known[1] or metric is not known[2]:
                self._last_learnt[key] = learnt
                found |= numbers
        return found

    def _job(
        self, world: World, job: Job, groups: tuple[Group, ...], profiles: Profiles, now: float, largest: int
    ) -> JobView:
        target = world.targets.get(job.id)
        profile, usual = self._profile(world, job, groups, profiles), self._histories.usual(groups)
        blocked = self._blocked(world, job, now) or self._turns.behind(job) or self._turns.wants(job)
        background = job.running is not None and job.running.is_background
        exempt = None if background else exemption(world, job, profile, self._exempt_starts, usual)
        end_s = script_end_s(world, job) or 0.0
        seen = world.observed.get(job.spec.learns_as)
        earlier = () if job.spec.accuracy_target is None else profiles.metric_before(job, seen)
        known = self._jobs.get(job.id)
        if (
            known is not None
            and known.job is job
            and known.target is target
            and known.profile is profile
            and known.earlier is earlier
            and known.view.usual == usual
            and known.view.blocked == blocked
            and known.exempt == exempt
            and known.view.end_s == end_s
            and known.view.exempt == _is_exempt(job, exempt, now)
            and known.view.in_place == (_in_place(job) and not (exempt is not None and now < exempt.rescale_until))
        ):
            return known.view
        before, after = None if known is None else known.job.progress, job.progress
        if (
            known is not None
            and before is not None
            and known.earlier is earlier
            and (before.accuracy is after.accuracy and before.total is after.total)
        ):
            total = known.view.total
        else:
            total = profiles.total_of(job, seen)
        view = _job_view(job, target, profile, usual, total, blocked, largest, exempt, now, end_s)
        self._jobs[job.id] = _JobInputs(job, target, profile, view, exempt, earlier)
        return view

    def _profile(self, world: World, job: Job, groups: tuple[Group, ...], profiles: Profiles) -> Profile | None:
        named = job.spec.profile is not None or bool(job.spec.burst)
        return self._named(world, job, profiles) if named else self._learnt(world, job, groups, profiles)

    def _named(self, world: World, job: Job, profiles: Profiles) -> Profile | None:
        """The profile that the job names, with the starts that jobs alike took where they take longer than it says.

        That of burst-parallel plans is corrected by the rates that were measured, too: DeepPool's performance monitor.
        """
        profile, own = profiles.of(job), world.observed.get(job.spec.learns_as)
        if profile is None or own is None or not self._exempt_starts:
            return profile
        key = (job.spec.learns_as, profile.name)
        known = self._named_of.get(key)
        if known is not None and known[0] is own and known[1] is profile:
            return known[2]
        planned = bool(job.spec.burst) and job.spec.profile is None
        found = slower(measured(profile, own) if planned else profile, own)
        if known is not None and known[1] is profile and known[2] == found:
            found = known[2]
        self._named_of[key] = (own, profile, found)
        return found

    def _learnt(self, world: World, job: Job, groups: tuple[Group, ...], profiles: Profiles) -> Profile | None:
        """What was learnt from jobs alike, else from those of its type; made anew only after more was seen of them."""
        key = job.spec.learns_as
        own = world.observed.get(key)
        if own is None or profiles.learn is None:
            return self._types.profile(world, job.spec, profiles)
        known, group = self._learnt_of.get(groups), self._histories.usual(groups)
        if known is not None and known.own is own and known.usual is world.usual_times and known.group == group:
            return known.profile or self._types.profile(world, job.spec, profiles)
        seen = observations_of(world, key, self._exempt_starts > 0, group)  # papers learn as they did
        if known is not None and known.seen == seen:
            profile = known.profile
        else:
            profile = None if seen is None else profiles.of(job, seen)
        self._learnt_of[groups] = _LearntProfile(own, world.usual_times, group, seen, profile)
        return profile or self._types.profile(world, job.spec, profiles)


def build_view(world: World, profiles: Profiles, now: float, exempt_starts: float = STARTS) -> View:
    """The view of a world, made from nothing."""
    return Views(exempt_starts).build(world, profiles, now)


def _job_view(
    job: Job,
    target: Target | None,
    profile: Profile | None,
    usual: UsualJob | None,
    total: int | None,
    blocked: str,
    largest: int,
    exempt: Exemption | None,
    now: float,
    end_s: float,
) -> JobView:
    running = job.running
    spec = job.spec
    background = running is not None and running.is_background  # it leaves whenever it is in anybody's way
    stays = exempt is not None and now < exempt.suspend_until
    return JobView(
        id=job.id,
        name=spec.name,
        state=state_of(job),
        gpus_min=spec.gpus_min,
        gpus_max=max(spec.gpus_min, largest if spec.gpus_max is None else spec.gpus_max),
        nodes=spec.nodes,
        step=job.progress.step or 0,
        total=total,
        profile=profile,
        placement=None if running is None else running.placement,
        target=None if target is None else target.placement,
        leaving=running is not None and running.stop is not None,
        can_suspend=background or spec.light_steps is not None or (can_suspend(job) and not stays),
        blocked=blocked,
        submitted_at=job.submitted_at,
        retry_at=job.failures.retry_at,
        user=spec.user,
        counts=spec.gpus_counts,
        nodes_max=spec.nodes if spec.nodes_max is None else spec.nodes_max,
        deadline=spec.deadline,
        started_at=job.first_start_at,
        step_at=running.progress.at
        if running is not None and running.progress is not None and running.trains
        else None,
        held_gpu_s=job.held_gpu_s,
        last=job.last.placement,
        gate=spec.gate and not job.warm_failed,
        ahead_since=None if job.gated is None else job.gated.requested_at,
        at_gate=job.gated is not None and all(part.at_gate for part in job.gated.parts),
        held_since=None if running is None else running.placed_at or running.granted_at or running.requested_at,
        accuracy=job.progress.accuracy,
        accuracy_target=spec.accuracy_target,
        rescale=spec.rescale,
        in_place=_in_place(job) and not (exempt is not None and now < exempt.rescale_until),
        rescaling=running is not None and running.rescale_at is not None,
        members=() if running is None else running.members,
        weight=spec.weight,
        priority=spec.priority,
        exempt=_is_exempt(job, exempt, now),
        exempt_until=exempt.suspend_until if exempt is not None and stays else 0.0,
        usual=usual,
        share=spec.share,
        gpu_memory_mib=known_memory_mib(job) if spec.share is not None else None,
        needs_mib=needed_mib(job),
        burst=spec.burst,
        end_s=end_s,
        in_end=job.ends_cut > 0 if running is None else running.end_at is not None,
        only_idle=spec.light_steps is not None,
    )


def _is_exempt(job: Job, exempt: Exemption | None, now: float) -> bool:
    return can_suspend(job) and lifts(job) and exempt is not None and now < exempt.suspend_until


def _in_place(job: Job) -> bool:
    running = job.running
    return (
        job.spec.rescale != "restart"
        and running is not None
        and running.membership > 0
        and running.state is IncarnationState.RUNNING
        and running.ending is None
    )


def blocked_why(world: World, job: Job, now: float, largest: LargestGpu | None = None) -> str:
    """Why the job cannot be placed now, whatever is free; "" where nothing but GPUs is missing.

    That it may have to wait for its turn in its array (`Turns`) is left out. `largest`: `largest_gpu_here`, where it is
    known already.
    """
    if job.cancelling or job.verdict is not None:
        return "it is being cancelled" if job.cancelling else "its last processes are ending"
    if job.out_of_time:
        return time_limits.over_text(job)
    if job.held:
        return held_text(job)
    if world.stopping:
        return "the daemon is stopping"
    if waits := waiting_why(world, job):
        return waits
    if job.failures.retry_at > now and job.running is None:  # running: the clock was set back
        failures = (
            count(job.failures.repeats, "equal failure")
            if job.failures.repeats >= job.fruitless
            else f"{count(job.fruitless, 'failure')} without a new checkpoint"
        )
        return f"pauses after {failures}: {job.last.detail}"
    if job.running is None and (needed := needed_mib(job)) is not None:
        lack = (largest or largest_gpu_here(world)).lack(needed)
        return f"needs {lack}: it waits for a larger one" if lack else ""
    return ""


class _Capped:
    """An array of which at most so many members may hold GPUs at a time."""

    __slots__ = ("admitted", "most", "size", "using", "waiting")

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0  # unfinished members
        self.using: set[int] = set()  # members that hold GPUs, or that the last plan gave some
        self.waiting: list[int] = []  # others that could be placed, ascending
        self.admitted: set[int] = set()  # those of them that have a turn

    def settle(self) -> set[int]:
        """Decides anew who has a turn; those for whom that changed."""
        before = self.admitted
        self.admitted = set(self.waiting[: max(0, self.most - len(self.using))])
        return before ^ self.admitted


class _Namesakes:
    """Unfinished jobs of one name and user, of which those that are singletons run one at a time, in order."""

    __slots__ = ("admitted", "live", "members", "singletons")

    def __init__(self) -> None:
        self.members: list[int] = []  # ascending
        self.live: set[int] = set()
        self.singletons: set[int] = set()
        self.admitted = 0  # the singleton that has its turn; 0: none

    def settle(self) -> set[int]:
        """Decides anew which singleton has its turn; those for whom that changed."""
        before = self.admitted
        first = self.members[0] if self.members and not self.live else 0
        self.admitted = first if first in self.singletons else 0
        return {before, self.admitted} - {0} if before != self.admitted else set()

    def ahead_of(self, number: int) -> int:
        """The job that a singleton waits for; 0: none."""
        if number in self.live or number == self.admitted:
            return 0
        return self.members[0] if self.members[0] < number else min(self.live, default=0)


class Turns:
    """Which waiting members of capped arrays may be placed: in order, as far as there is room; and which singletons.

    Members that hold GPUs, or that the last plan gave some, count; those that are held by their user, pause or wait for
    other jobs neither count nor keep others from their turn. A singleton waits for all earlier jobs of its name (for
    members of an array that of its submit), and for one that lives. Only a cache of what follows from the world.
    """

    def __init__(self) -> None:
        self._arrays: dict[int, _Capped] = {}
        self._array_of: dict[int, int] = {}
        self._changed: set[int] = set()
        self._names: dict[tuple[str, str], _Namesakes] = {}
        self._name_of: dict[int, tuple[str, str]] = {}
        self._changed_names: set[tuple[str, str]] = set()

    def note(self, world: World, job: Job | None, number: int, blocked: str) -> None:
        """A job may stand otherwise than before; None: it is finished. `blocked`: why it cannot be placed anyway."""
        self._note_name(job, number)
        spec = None if job is None else job.spec
        if spec is None or not spec.array_most:
            self._forget(number)
            return
        assert job is not None
        array = self._arrays.get(spec.array)
        if array is None:
            array = self._arrays[spec.array] = _Capped(spec.array_most)
        if number not in self._array_of:
            self._array_of[number] = spec.array
            array.size += 1
        target = world.targets.get(number)
        uses = job.running is not None or (target is not None and target.placement is not None)
        waits = not uses and not blocked
        if uses != (number in array.using):
            (array.using.add if uses else array.using.discard)(number)
            self._changed.add(spec.array)
        place = bisect_left(array.waiting, number)
        waited = place < len(array.waiting) and array.waiting[place] == number
        if waits != waited:
            if waits:
                insort(array.waiting, number)
            else:
                del array.waiting[place]
            self._changed.add(spec.array)

    def _note_name(self, job: Job | None, number: int) -> None:
        key = self._name_of.get(number)
        if job is None:
            if key is not None:
                del self._name_of[number]
                alike = self._names[key]
                del alike.members[bisect_left(alike.members, number)]
                alike.live.discard(number)
                alike.singletons.discard(number)
                self._changed_names.add(key)
            return
        if key is None:
            key = self._name_of[number] = (job.spec.base_name, job.spec.user)
            alike = self._names.setdefault(key, _Namesakes())
            insort(alike.members, number)
            if job.spec.singleton:
                alike.singletons.add(number)
            self._changed_names.add(key)
        alike = self._names[key]
        if bool(job.live) != (number in alike.live):
            (alike.live.add if job.live else alike.live.discard)(number)
            self._changed_names.add(key)

    def behind(self, job: Job) -> str:
        """What a singleton waits for, in words; "" where it has its turn, or is none."""
        first = self._names[self._name_of[job.id]].ahead_of(job.id) if job.spec.singleton else 0
        return f"waiting for job {first} to end: one job named {job.spec.base_name} at a time" if first else ""

    def _forget(self, number: int) -> None:
        which = self._array_of.pop(number, None)
        if which is None:
            return
        array = self._arrays[which]
        array.size -= 1
        array.using.discard(number)
        place = bisect_left(array.waiting, number)
        if place < len(array.waiting) and array.waiting[place] == number:
            del array.waiting[place]
        self._changed.add(which)

    def settle(self) -> set[int]:
        """The jobs that have their turn now and had not before, or the other way round."""
        found: set[int] = set()
        for key in self._changed_names:
            alike = self._names[key]
            found |= alike.settle()
            if not alike.members:
                del self._names[key]
        self._changed_names.clear()
        for which in self._changed:
            array = self._arrays[which]
            found |= array.settle()
            if not array.size:
                del self._arrays[which]
        self._changed.clear()
        return found

    def wants(self, job: Job) -> str:
        """Why it has to wait for its turn; "" where it need not."""
        spec = job.spec
        array = self._arrays.get(spec.array) if spec.array_most else None
        if array is None or job.id in array.using or job.id in array.admitted:
            return ""
        return f"at most {spec.array_most} of array {spec.array} at a time"


class SortedJobs:
    """The jobs of one view after another, kept sorted by how they stand and by node.

    What is handed out does not change any more.
    """

    def __init__(self) -> None:
        self.jobs: dict[int, JobView] = {}
        self._standing = {each: _SortedJob() for each in Standing}
        self._by_node: dict[str, tuple[JobView, ...]] = {}
        self._held: dict[str, frozenset[int]] = {}
        self._changed: set[str] = set()
        self._ordered = _SortedJob()
        self._known: dict[str, Any] | None = None

    def put(self, job: JobView) -> None:
        """A job is new, or stands otherwise than before."""
        before = self.jobs.get(job.id)
        if before is job:
            return
        self._known = None
        self.jobs[job.id] = job
        self._ordered.put(job)
        if before is not None:
            self._off_nodes(before)
            if before.standing is not job.standing:
                self._standing[before.standing].drop(job.id)
        self._standing[job.standing].put(job)
        for name in () if job.placement is None else job.placement.nodes:
            others = self._by_node.get(name)
            there = (job,) if others is None else tuple(sorted((*others, job), key=lambda each: each.order))
            self._by_node[name], self._held[name] = there, held_on(name, there)
            self._changed.add(name)

    def drop(self, number: int) -> None:
        """A job is finished."""
        job = self.jobs.pop(number, None)
        if job is None:
            return
        self._known = None
        self._ordered.drop(number)
        self._standing[job.standing].drop(number)
        self._off_nodes(job)

    def _off_nodes(self, job: JobView) -> None:
        for name in () if job.placement is None else job.placement.nodes:
            self._changed.add(name)
            left = tuple(each for each in self._by_node[name] if each is not job)
            if left:
                self._by_node[name], self._held[name] = left, held_on(name, left)
            else:
                del self._by_node[name], self._held[name]

    def changed_nodes(self) -> set[str]:
        """Nodes of which other jobs, or the same ones otherwise, hold GPUs than when this was asked for before."""
        changed, self._changed = self._changed, set()
        return changed

    def all(self) -> tuple[JobView, ...]:
        """Every job, in order."""
        return self._ordered.all()

    def known(self) -> dict[str, Any]:
        """The cached properties of `View` that follow from its jobs."""
        if self._known is None:
            self._known = {
                "by_standing": {each: ordered.all() for each, ordered in self._standing.items()},
                "by_id": self._ordered.by_id(),
                "by_node": self._by_node.copy(),
                "held": self._held.copy(),
            }
        return self._known


class _SortedJob:
    """Jobs in their order."""

    def __init__(self) -> None:
        self._jobs: dict[int, JobView] = {}
        self._last = (-LARGEST, 0)
        self._in_order = True
        self._all: tuple[JobView, ...] | None = None

    def put(self, job: JobView) -> None:
        self._all = None
        before = self._jobs.get(job.id)
        if before is None or before.priority != job.priority:
            order = job.order
            self._in_order = self._in_order and before is None and order > self._last
            self._last = max(self._last, order)
        self._jobs[job.id] = job

    def drop(self, number: int) -> None:
        self._all = None
        del self._jobs[number]

    def by_id(self) -> dict[int, JobView]:
        self._sort()
        return self._jobs.copy()

    def _sort(self) -> None:
        if not self._in_order:
            found = sorted(self._jobs.values(), key=lambda job: job.order)
            self._jobs = {job.id: job for job in found}
            self._in_order = True

    def all(self) -> tuple[JobView, ...]:
        self._sort()
        if self._all is None:
            self._all = tuple(self._jobs.values())
        return self._all


_NodeInputs = tuple[tuple[GpuInfo, ...], bool, float | None, float, tuple[Avoided, ...]]


@dataclass(frozen=True, slots=True)
class ViewNodes:
    """The nodes of a view."""

    nodes: tuple[NodeView, ...]  # by name
    bare: frozenset[str]  # as `View.bare`
    largest: int  # GPUs of the largest node that there ever was
    known: dict[str, Any]  # the cached properties of `View` that follow from its nodes


class StandingNodes:
    """The nodes of one view after another, as policies see them. What is handed out does not change any more."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[_NodeInputs, NodeView]] = {}
        self._names: list[str] = []
        self._views: dict[str, NodeView] = {}
        self._kinds: dict[str, str] = {}
        self._gpus: dict[str, frozenset[int]] = {}
        self._free: dict[str, tuple[int, ...]] = {}
        self._bare: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._by_size: Counter[int] = Counter()
        self._fresh: set[str] = set()

    def look(self, world: World, changed: Iterable[str] | None) -> ViewNodes:
        """The nodes of a world. `changed`: all that changed since the last look; None: it may have been any."""
        for name in world.nodes if changed is None else changed:
            node = world.nodes.get(name)
            if node is not None:
                self._put(node)
        largest = max((size for size, many in self._by_size.items() if many), default=0)
        nodes = tuple(map(self._views.__getitem__, self._names))
        known = {"kinds": self._kinds.copy(), "gpus": self._gpus.copy()}
        return ViewNodes(nodes, frozenset(self._bare), largest, known)

    def free(self, changed: Iterable[str], held: Mapping[str, frozenset[int]]) -> dict[str, tuple[int, ...]]:
        """GPUs that nobody holds, by node. `changed`: nodes of which other GPUs are held than before."""
        none = frozenset[int]()
        for name in self._fresh.union(changed):
            gpus = self._gpus.get(name)
            if gpus is not None:
                taken = held.get(name, none)
                self._free[name] = tuple(sorted(gpus - taken)) if taken else self._views[name].gpus
        self._fresh.clear()
        return self._free.copy()

    def _put(self, node: Node) -> None:
        name, size = node.name, len(node.gpus)
        before = self._sizes.get(name)
        if size != before:
            if before is not None:
                self._by_size[before] -= 1
            self._by_size[size] += 1
            self._sizes[name] = size
        there = node.connected and not node.lost
        view = self._view(node) if there else None
        self._bare.discard(name)
        if view is not None and view.gpus:
            if name not in self._views:
                self._names.insert(bisect_left(self._names, name), name)
            self._views[name], self._kinds[name], self._gpus[name] = view, view.kind, frozenset(view.gpus)
            self._fresh.add(name)
            return
        if there and node.gpus:
            self._bare.add(name)
        if self._views.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)], self._kinds[name], self._gpus[name]
            self._free.pop(name, None)
            self._fresh.discard(name)

    def _view(self, node: Node) -> NodeView:
        made_of = (node.gpus, node.leaving, node.until, node.joined_at, node.avoided)
        known = self._made.get(node.name)
        if known is not None and known[0] == made_of:
            return known[1]
        names = {gpu.name for gpu in node.gpus}
        kind = gpu_kind(names.pop()) if len(names) == 1 else ""
        distances = tuple((gpu.index, *each) for gpu in node.gpus for each in gpu.distances)
        memory = tuple((gpu.index, gpu.memory_mib) for gpu in node.gpus if gpu.memory_mib)
        view = NodeView(node.name, node.usable, kind, node.joined_at, node.until, node.place, distances, memory)
        self._made[node.name] = (made_of, view)
        return view
