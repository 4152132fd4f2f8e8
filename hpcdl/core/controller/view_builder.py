"""From the world to what a policy sees of it. What has not changed since the last view is taken from there."""

import math
from dataclasses import dataclass

from hpcdl.core.exempt import STARTS, Exemption, exemption
from hpcdl.core.lifecycle import Touched
from hpcdl.core.model import IncarnationState, Job, Target, World
from hpcdl.core.observing import arrivals_of, seen_of, slower
from hpcdl.core.parallel import Turns
from hpcdl.core.plan import JobView, Profiles, View
from hpcdl.core.profile import Profile, Seen, Timing
from hpcdl.core.sorting import Sorted
from hpcdl.core.standing import StandingNodes, There
from hpcdl.core.transitions import state_of
from hpcdl.core.units import count


@dataclass(frozen=True, slots=True)
class _MadeOf:
    """A JobView and what it was made of."""

    job: Job
    target: Target | None
    profile: Profile | None
    view: JobView
    exempt: Exemption | None = None


@dataclass(frozen=True, slots=True)
class _Learnt:
    """A profile that was learnt, None where nothing could be, and of what."""

    own: Seen
    usual: tuple[Timing, ...]
    seen: Seen | None
    profile: Profile | None


class Views:
    """Makes views, one after another, of one world as it goes on. Only a cache: `Views().build` gives the same."""

    def __init__(self, exempt_starts: float = STARTS) -> None:
        """`exempt_starts`: see `exempt.exemption`."""
        self._exempt_starts = exempt_starts
        self._exempt: dict[int, float] = {}  # by job, when what its view says of that ends by itself
        self._jobs: dict[int, _MadeOf] = {}
        self._standing = StandingNodes()
        self._learnt_of: dict[str, _Learnt] = {}
        self._named_of: dict[tuple[str, str], tuple[Seen, Profile, Profile]] = {}
        self._sorted = Sorted()
        self._restless: set[int] = set()
        self._learns: dict[int, str] = {}
        self._alike: dict[str, set[int]] = {}
        self._last_learnt: dict[str, Profile | None] = {}
        self._turns = Turns()
        self._there: There | None = None
        self._made_with: tuple[int, bool, Profiles] | None = None

    def build(self, world: World, profiles: Profiles, now: float, touched: Touched | None = None) -> View:
        """The view of a world. Jobs that only wait for their processes to go are `leaving`.

        `touched`: all to which anything has happened since the view before; None: it may have been anything.
        """
        changed_nodes = None if touched is None else touched.nodes
        if changed_nodes is None or changed_nodes or self._there is None:
            self._there = self._standing.look(world, None if self._there is None else changed_nodes)
            self._learnt_of.clear()  # what is learnt is for the nodes that there are
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
        if changed is None:
            changed = {*self._sorted.jobs, *world.active}
        over = [number for number, until in self._exempt.items() if until <= now]
        looked_at = self._restless.union(changed, over, self._learnt_anew(world, profiles))
        for number in looked_at:
            job = world.jobs[number] if number in world.active else None
            self._turns.note(world, job, number, "" if job is None else blocked_why(world, job, now))
        for number in sorted(looked_at | self._turns.settle()):
            self._update(world, number, profiles, now, largest)
        arrivals = arrivals_of(world) if self._exempt_starts else ()
        view = View(now, there.nodes, self._sorted.all(), world.objective, there.bare, world.gaps, arrivals)
        view.memo.update(self._sorted.memo())
        view.memo.update(there.memo)
        view.memo["free"] = self._standing.free(self._sorted.changed_nodes(), view.held)
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
            if (key := self._learns.pop(number, None)) is not None:
                self._alike[key].discard(number)
            return
        view = self._job(world, world.jobs[number], profiles, now, largest)
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
        spec = world.jobs[number].spec
        if number not in self._learns and (profiles.learn is not None or spec.profile is not None):
            key = self._learns[number] = spec.learns_as if spec.profile is None else f"{spec.learns_as}\0{spec.profile}"
            self._alike.setdefault(key, set()).add(number)

    def _learnt_anew(self, world: World, profiles: Profiles) -> set[int]:
        """The jobs of which something else is learnt than at the last view, from jobs like them."""
        found: set[int] = set()
        for key in [key for key, numbers in self._alike.items() if not numbers]:
            del self._alike[key]
            self._last_learnt.pop(key, None)
        for key, numbers in self._alike.items():
            job = world.jobs[next(iter(numbers))]
            profile = self._profile(world, job, profiles)
            if profile is not self._last_learnt.get(key):
                self._last_learnt[key] = profile
                found |= numbers
        return found

    def _job(self, world: World, job: Job, profiles: Profiles, now: float, largest: int) -> JobView:
        target = world.targets.get(job.id)
        profile = self._profile(world, job, profiles)
        blocked = blocked_why(world, job, now) or self._turns.wants(job)
        exempt = exemption(world, job, profile, self._exempt_starts)
        known = self._jobs.get(job.id)
        if (
            known is not None
            and known.job is job
            and known.target is target
            and known.profile is profile
            and known.view.blocked == blocked
            and known.exempt == exempt
            and known.view.exempt == (can_suspend(job) and exempt is not None and now < exempt.suspend_until)
            and known.view.in_place == (_in_place(job) and not (exempt is not None and now < exempt.rescale_until))
        ):
            return known.view
        if known is not None and known.job.accuracy is job.accuracy and known.job.total is job.total:
            total = known.view.total
        else:
            total = profiles.total_of(job)
        view = _job_view(job, target, profile, total, blocked, largest, exempt, now)
        self._jobs[job.id] = _MadeOf(job, target, profile, view, exempt)
        return view

    def _profile(self, world: World, job: Job, profiles: Profiles) -> Profile | None:
        named = job.spec.profile is not None
        return self._named(world, job, profiles) if named else self._learnt(world, job, profiles)

    def _named(self, world: World, job: Job, profiles: Profiles) -> Profile | None:
        """The profile that the job names, with the starts that jobs alike took where they take longer than it says."""
        profile, own = profiles.of(job), world.observed.get(job.spec.learns_as)
        if profile is None or own is None or not self._exempt_starts:
            return profile
        key = (job.spec.learns_as, profile.name)
        known = self._named_of.get(key)
        if known is not None and known[0] is own and known[1] is profile:
            return known[2]
        found = slower(profile, own)
        if known is not None and known[1] is profile and known[2] == found:
            found = known[2]
        self._named_of[key] = (own, profile, found)
        return found

    def _learnt(self, world: World, job: Job, profiles: Profiles) -> Profile | None:
        """What was learnt from jobs alike; made anew only after more was seen of them."""
        key = job.spec.learns_as
        own = world.observed.get(key)
        if own is None or profiles.learn is None:
            return None
        known = self._learnt_of.get(key)
        if known is not None and known.own is own and known.usual is world.usual_times:
            return known.profile
        seen = seen_of(world, key, self._exempt_starts > 0)  # the studies of the papers learn as they did
        if known is not None and known.seen == seen:
            profile = known.profile
        else:
            profile = None if seen is None else profiles.of(job, seen)
        self._learnt_of[key] = _Learnt(own, world.usual_times, seen, profile)
        return profile


def build_view(world: World, profiles: Profiles, now: float, exempt_starts: float = STARTS) -> View:
    """The view of a world, made from nothing."""
    return Views(exempt_starts).build(world, profiles, now)


def lifts_hold(job: Job) -> str:
    """The verb that lets a held job go on: what was never started is released."""
    return "release" if job.first_start_at is None else "resume"


def can_suspend(job: Job) -> bool:
    """Whether the job has shown, by attaching or by its signal's preset, that it checkpoints when it is asked to."""
    if job.spec.resumes is not None:
        return True  # it resumes by itself
    return job.spec.signal != "none" and (job.can_suspend or job.spec.signal != "hpcdl")


def _job_view(
    job: Job,
    target: Target | None,
    profile: Profile | None,
    total: int | None,
    blocked: str,
    largest: int,
    exempt: Exemption | None,
    now: float,
) -> JobView:
    running = job.running
    spec = job.spec
    stays = exempt is not None and now < exempt.suspend_until
    return JobView(
        id=job.id,
        name=spec.name,
        state=state_of(job),
        gpus_min=spec.gpus_min,
        gpus_max=max(spec.gpus_min, largest if spec.gpus_max is None else spec.gpus_max),
        nodes=spec.nodes,
        step=job.step or 0,
        total=total,
        profile=profile,
        placement=None if running is None else running.placement,
        target=None if target is None else target.placement,
        leaving=running is not None and (running.purpose is not None or running.ending is not None),
        can_suspend=can_suspend(job) and not stays,
        blocked=blocked,
        submitted_at=job.submitted_at,
        retry_at=job.retry_at,
        user=spec.user,
        counts=spec.gpus_counts,
        nodes_max=spec.nodes if spec.nodes_max is None else spec.nodes_max,
        deadline=spec.deadline,
        started_at=job.first_start_at,
        step_at=running.progressed_at if running is not None and running.trains else None,
        held_gpu_s=job.held_gpu_s,
        last=job.last,
        gate=spec.gate and not job.warm_failed,
        ahead_since=None if job.gated is None else job.gated.requested_at,
        at_gate=job.gated is not None and all(part.at_gate for part in job.gated.parts),
        held_since=None if running is None else running.placed_at or running.granted_at or running.requested_at,
        accuracy=job.accuracy,
        accuracy_target=spec.accuracy_target,
        rescale=spec.rescale,
        in_place=_in_place(job) and not (exempt is not None and now < exempt.rescale_until),
        rescaling=running is not None and running.rescale_at is not None,
        members=() if running is None else running.members,
        weight=spec.weight,
        priority=spec.priority,
        exempt=stays and can_suspend(job),
        exempt_until=exempt.suspend_until if exempt is not None and stays else 0.0,
    )


def _in_place(job: Job) -> bool:
    running = job.running
    return (
        job.spec.rescale != "restart"
        and running is not None
        and running.membership > 0
        and running.state is IncarnationState.RUNNING
        and running.ending is None
    )


def blocked_why(world: World, job: Job, now: float) -> str:
    """Why the job cannot be placed now, whatever is free; "" where nothing but GPUs is missing.

    That it may have to wait for its turn in its array (`parallel.Turns`) is left out.
    """
    if job.cancelling or job.final is not None:
        return "it is being cancelled" if job.cancelling else "its last processes are ending"
    if job.held:
        return f"held by its user: hpcdl {lifts_hold(job)} {job.id}"
    if world.stopping:
        return "the daemon is stopping"
    if job.spec.after:
        waits = [each for each in job.spec.after if (before := world.jobs.get(each)) is None or not before.finished]
        if waits:
            return f"waiting for {'job' if len(waits) == 1 else 'jobs'} {', '.join(map(str, waits))} to be DONE"
    if job.retry_at > now and job.running is None:  # running: the clock was set back
        return f"pauses after {count(job.repeats, 'equal failure')}: {job.last_detail}"
    return ""
