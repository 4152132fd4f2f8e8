"""Backgrounds: jobs on GPUs of others that agreed to it, beside whatever a policy plans. One pass for all policies.

A policy plans foregrounds only: in its view (`without_backgrounds`) a background holds nothing, so that it is in
nobody's way. What the plan leaves waiting may then become one (`with_backgrounds`). A background that gets GPUs by the
plan while its own are nobody else's stays there, and becomes the foreground: nothing is asked of its trainer.
Under a policy that leaves GPUs to them (`spare_gpus`) backgrounds also have those that it gives nobody.
Both are pure. When two jobs may be on one GPU is said in `model/sharing.py`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import ALWAYS, BY_SETTING, JobView, NodeView, Plan, Targets, View, share_refusal
from hpcdl.core.model.units import GpuRef, count, fold_nodes
from hpcdl.core.model.world import JobState, Target


def shares(policy: Any, on: bool) -> bool:
    """Whether there are backgrounds under this policy. `on`: the setting."""
    kind = getattr(policy, "sharing", "")
    return kind == ALWAYS or (kind == BY_SETTING and on)


def without_backgrounds(view: View) -> View:
    """What a policy is to see: the view itself where nobody is a background, or is to be one."""
    if not any(_is_behind(job) for job in view.jobs):
        return view
    return replace(view, jobs=tuple(_waiting(job, view.now) if _is_behind(job) else job for job in view.jobs))


def _is_behind(job: JobView) -> bool:
    return job.is_background or (job.target is not None and job.target.role is Role.BACKGROUND)


def _gpus(placement: Placement | None) -> Iterable[GpuRef]:
    return () if placement is None else placement.gpus


def _waiting(job: JobView, now: float) -> JobView:
    """A background as a policy sees it: it waits, or is on its way to what the last plan gave it as a foreground."""
    target = None if job.target is None or job.target.role is Role.BACKGROUND else job.target
    if not job.is_background:
        return replace(job, target=target)
    return replace(
        job,
        placement=None,
        target=target,
        state=JobState.SUSPENDED,
        leaving=False,
        in_place=False,
        rescaling=False,
        members=(),
        step=int(job.steps(now)),
        step_at=None,
        held_gpu_s=job.attained_gpu_s(now),
        held_since=None,
        last=job.placement,
    )


def with_backgrounds(view: View, seen: View, plan: Plan, *, on: bool, spare: bool = False) -> Plan:
    """The plan that was made for `seen` (`without_backgrounds` of the view), and what becomes of backgrounds.

    `on`: jobs may be backgrounds; else those that are go. `spare`: they may have GPUs that the plan gives nobody.
    """
    plan = _foregrounds_first(seen, plan) if on else plan
    targets = plan.targets
    of = targets.of if isinstance(targets, Targets) else (lambda job: known[job.id])
    known: Mapping[int, Target] = {} if isinstance(targets, Targets) else plan.by_job()
    behind = [job for job in view.jobs if _is_behind(job)]
    waits = [job for job in view.waiting if agrees(job) and job.id not in plan.warm] if on else []
    if not behind and not waits:
        return plan
    said = {job.id: of(seen.by_id[job.id]) for job in behind}
    pairs = _Pairs(view, {target.job: target.placement for target in targets}, spare)
    for number, placement in pairs.make_way(plan.warm).items():
        said[number] = replace(of(seen.by_id[number]), placement=placement)
    for job in behind:
        held, wanted = job.placement if job.is_background else job.target, said[job.id]
        if wanted.placement is not None:
            if job.is_background and not job.leaving and pairs.may_stay(job, wanted.placement):
                said[job.id] = pairs.promoted(job, wanted)
        elif job.blocked:
            continue
        elif on and held is not None and not job.leaving and pairs.keeps(job, held):
            said[job.id] = pairs.take(job, held)
        elif job.is_background:
            why = "is to be no background any more" if not on else "makes room for the foreground of its GPUs"
            said[job.id] = Target(job.id, None, f"{why}; {said[job.id].reason}")
    again = [job for job in behind if job.placement is None and said[job.id].placement is None and not job.blocked]
    for job in sorted([*waits, *(again if on else ())], key=lambda job: job.order):
        if of(seen.by_id[job.id]).placement is None and (found := pairs.find(job)) is not None:
            said[job.id] = pairs.take(job, found)
    for job in sorted(behind, key=lambda job: job.order) if spare and on else ():
        kept = said[job.id].placement
        if job.is_background and kept == job.placement and kept is not None and (found := pairs.alone(job, kept)):
            said[job.id] = pairs.take(job, found)
    if isinstance(targets, Targets):
        return replace(plan, targets=targets.of_view(view, said))
    return replace(plan, targets=tuple(said.get(target.job, target) for target in targets))


def _foregrounds_first(seen: View, plan: Plan) -> Plan:
    """The plan where a foreground has the GPUs on which one that agreed to be a background would keep it waiting.

    Only where the two may share them, so that both run: the other one becomes a background there.
    """
    behind = [job for job in seen.jobs if agrees(job) and not (job.placement and not job.can_suspend)]
    if not behind:
        return plan
    ahead = [job for job in seen.jobs if job.share is not None and not job.share.as_background and not job.blocked]
    targets = plan.targets
    said = plan.by_job() if not isinstance(targets, Targets) else {}
    of = targets.of if isinstance(targets, Targets) else (lambda job: said[job.id])
    waits = [job for job in ahead if of(job).placement is None and not job.leaving]
    nodes = {node.name: node for node in seen.nodes}
    changed: dict[int, Target] = {}
    for back in behind if waits else ():
        given = of(back).placement
        if given is None or len(given.shares) > 1:
            continue
        if back.placement is not None and not back.placement.same_gpus(given):
            continue
        front = next((job for job in waits if job.id not in changed and _goes_before(job, back, given, nodes)), None)
        if front is not None:
            place = front.placement or Placement(given.shares, given.role)
            beside = f"job {back.id}, which agreed to be a background, may run beside it"
            changed[front.id] = Target(
                front.id, place, f"{count(len(place.gpus), 'GPU')} of {place.nodes[0]}: {beside}"
            )
            why = f"makes room for job {front.id}, beside which it may run as a background"
            changed[back.id] = Target(back.id, None, why)
    if not changed:
        return plan
    warm = tuple(number for number in plan.warm if number not in changed)
    if isinstance(targets, Targets):
        return replace(plan, targets=targets.of_view(seen, changed), warm=warm)
    return replace(plan, targets=tuple(changed.get(target.job, target) for target in targets), warm=warm)


def _goes_before(front: JobView, back: JobView, given: Placement, nodes: Mapping[str, NodeView]) -> bool:
    """Whether the job is to have these GPUs, of one node, which the plan gives to a background."""
    ((name, gpus),) = ((share.node, share.gpus) for share in given.shares)
    if front.priority < back.priority or (front.placement is not None and not front.placement.same_gpus(given)):
        return False
    if front.nodes != 1 or len(gpus) not in front.allowed(len(gpus)):
        return False
    return name in nodes and not any(share_refusal(nodes[name], gpu, front, back) for gpu in gpus)


def agrees(job: JobView) -> bool:
    """Whether the job may be a background."""
    # Ranks that form memberships come and go by themselves: a background is to be gone at once.
    return job.share is not None and job.share.as_background and job.rescale == "restart"


@dataclass(slots=True)
class _Pairs:
    """Who is to be the foreground of which GPU, and the backgrounds beside them so far."""

    view: View
    placements: Mapping[int, Placement | None]  # of the foregrounds, by job
    spare: bool = False  # GPUs without a foreground are for backgrounds, too
    idle: dict[GpuRef, float] = field(default_factory=dict)  # the part of its time that the foreground leaves free
    owners: dict[GpuRef, JobView] = field(init=False)
    nodes: dict[str, NodeView] = field(init=False)
    taken: set[GpuRef] = field(default_factory=set)

    def __post_init__(self) -> None:
        by_id = self.view.by_id
        self.owners = {gpu: by_id[number] for number, place in self.placements.items() for gpu in _gpus(place)}
        for number, place in self.placements.items():
            if place is not None and by_id[number].burst:
                self.idle.update(by_id[number].idle_parts(place))
        self.nodes = {node.name: node for node in self.view.nodes}

    def allows(self, job: JobView, gpu: GpuRef) -> bool:
        """Whether the job may be the background of this GPU."""
        if gpu in self.taken:
            return False
        return not share_refusal(self.nodes.get(gpu.node), gpu.number, self.owners.get(gpu), job)

    def may_stay(self, job: JobView, wanted: Placement) -> bool:
        """Whether it can go on as the foreground where it is, in the place of GPUs that are as good."""
        held = job.placement
        if held is None or [len(share.gpus) for share in held.shares] != [len(share.gpus) for share in wanted.shares]:
            return False
        if any(self.owners.get(gpu, job).id != job.id for gpu in held.gpus):
            return False
        kinds = self.view.kinds
        same = all(kinds.get(here) == kinds.get(there) for here, there in zip(held.nodes, wanted.nodes, strict=True))
        return same and all(gpu.number in self.view.gpus.get(gpu.node, ()) for gpu in held.gpus)

    def promoted(self, job: JobView, wanted: Target) -> Target:
        """Its own GPUs, no longer as a background."""
        for gpu in _gpus(wanted.placement):
            if self.owners.get(gpu, job).id == job.id:
                self.owners.pop(gpu, None)
        assert job.placement is not None
        assert wanted.placement is not None
        self.owners.update((gpu, job) for gpu in job.placement.gpus)
        return Target(job.id, replace(job.placement, role=wanted.placement.role), wanted.reason)

    def make_way(self, warm: Collection[int]) -> dict[int, Placement]:
        """Other GPUs of the same node for new foregrounds that would wait there until a background has left.

        A background that is to have these may stay where it is instead. Only whole answers: else nothing is gained.
        """
        behind = {gpu: job for job in self.view.jobs if job.is_background for gpu in _gpus(job.placement)}
        found: dict[int, Placement] = {}
        for number, place in self.placements.items() if behind else ():
            job = self.view.by_id[number]
            if place is None or job.placement is not None or len(place.shares) > 1 or number in warm:
                continue
            if place.role is Role.BACKGROUND:
                continue
            ((name, gpus),) = ((share.node, share.gpus) for share in place.shares)
            node = self.nodes.get(name)
            taken = {gpu: behind[gpu] for gpu in place.gpus if gpu in behind}
            taken = {gpu: each for gpu, each in taken.items() if share_refusal(node, gpu.number, job, each)}
            stay = {each.id: each for each in taken.values() if not each.leaving}
            free = [GpuRef(name, gpu) for gpu in self.view.free.get(name, ()) if taken]
            spare = [gpu for gpu in free if gpu not in self.owners]
            spare += [gpu for gpu in free if gpu in self.owners and self.owners[gpu].id in stay]
            if not taken or len(spare) < len(taken):
                continue
            before, chosen = dict(self.owners), spare[: len(taken)]
            robbed = {self.owners[gpu].id for gpu in chosen if gpu in self.owners}
            for gpu in taken:
                del self.owners[gpu]
            self.owners.update(dict.fromkeys(chosen, job))
            wanted = {each: self.placements[each] for each in robbed}
            if all(there is not None and self.may_stay(stay[each], there) for each, there in wanted.items()):
                kept = set(gpus) - {gpu.number for gpu in taken}
                share = Share(name, tuple(sorted(kept | {gpu.number for gpu in chosen})))
                found[number] = replace(place, shares=(share,))
            else:
                self.owners = before
        return found

    def keeps(self, job: JobView, held: Placement) -> bool:
        """Whether it may stay there, or start there as the last plan had it."""
        if job.placement is None and not all(self._runs(gpu) for gpu in held.gpus):
            return False
        return all(self.allows(job, gpu) for gpu in held.gpus)

    def _runs(self, gpu: GpuRef) -> bool:
        """Whether a background can start there: the foreground runs already and stays, or nobody has the GPU."""
        owner = self.owners.get(gpu)
        if owner is None:
            return self.spare and gpu.number in self.view.free.get(gpu.node, ())
        if owner.leaving or owner.is_background or owner.placement is None:
            return False
        return gpu in owner.placement.gpus and gpu.number in self.view.gpus.get(gpu.node, ())

    def find(self, job: JobView) -> Placement | None:
        """GPUs for the job as a background; None where there are too few.

        Those come first that are free for most of the time, then those with most room.
        """
        rooms = []
        for name in self.nodes:
            gpus = [gpu for gpu in self._of(name) if self._runs(gpu) and self.allows(job, gpu)]
            counts = [each for each in job.allowed(len(gpus)) if each <= max(job.best_gpus(len(gpus)), job.gpus_min)]
            if counts:
                best = sorted(gpus, key=lambda gpu: (-self._idle(gpu), -self._room(gpu), gpu.number))[: counts[-1]]
                rooms.append((-len(best), -sum(map(self._idle, best)), -min(map(self._room, best)), name, best))
        chosen = sorted(rooms)[: job.nodes]
        found = [Share(name, tuple(sorted(gpu.number for gpu in best))) for *_, name, best in chosen]
        if len(found) < job.nodes:
            return None
        return Placement(tuple(sorted(found, key=lambda share: share.node)), Role.BACKGROUND)

    def alone(self, job: JobView, held: Placement) -> Placement | None:
        """As many GPUs that nobody has, for a background that shares those that it holds; None where there are none."""
        if not any(gpu in self.owners for gpu in held.gpus):
            return None
        found = self.find(job)
        if found is None or len(found.gpus) < len(held.gpus) or any(gpu in self.owners for gpu in found.gpus):
            return None
        self.taken.difference_update(held.gpus)
        return found

    def _of(self, name: str) -> list[GpuRef]:
        return [GpuRef(name, index) for index in self.nodes[name].gpus]

    def _idle(self, gpu: GpuRef) -> float:
        return self.idle.get(gpu, 0.0) if gpu in self.owners else 1.0

    def _room(self, gpu: GpuRef) -> int:
        owner = self.owners.get(gpu)
        taken = 0 if owner is None else owner.gpu_memory_mib or 0
        return dict(self.nodes[gpu.node].memory).get(gpu.number, 0) - taken

    def take(self, job: JobView, placement: Placement) -> Target:
        """Gives the job these GPUs."""
        self.taken.update(placement.gpus)
        beside = {self.owners[gpu].id: self.owners[gpu] for gpu in placement.gpus if gpu in self.owners}
        limits = [each.share.slowdown for each in beside.values() if each.share and each.share.slowdown]
        names = f"{'job' if len(beside) == 1 else 'jobs'} {', '.join(map(str, sorted(beside)))}"
        where = f"{count(len(placement.gpus), 'GPU')} of {fold_nodes(placement.nodes)}"
        limit = f", which it may slow down by {100 * min(limits):g} %" if limits else ""
        return Target(job.id, placement, f"background on {where}" + (f" beside {names}{limit}" if beside else ""))
