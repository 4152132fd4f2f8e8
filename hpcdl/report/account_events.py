"""What the account reads from events beside the spans: when GPUs were available, saves, lost work, policies.

Pure; `account` adds it up.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.transitions import FAILURES
from hpcdl.core.model.units import GpuRef

Interval = tuple[float, float]
_Key = tuple[int, int]
KEPT = frozenset({Cause.DONE, Cause.CANCELLED, Cause.SUSPENDED})
"""How an attempt ends whose work nobody repeats: complete, ended by its user, or saved."""


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Whose a job is: its user, the first job of its array, 0 where it is in none, and its tags."""

    user: str
    array: int
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Work:
    """An attempt's progress. `saves`: (when durable, at which step); `lost`: training from here until there."""

    saves: list[tuple[float, int]] = field(default_factory=list)
    saving: list[Interval] = field(default_factory=list)
    lost: list[Interval] = field(default_factory=list)
    step: int | None = None
    began: int | None = None
    """The step from which its training loop began; None: it has not."""
    gained: bool = False
    """It has done a step, as far as it reports."""
    in_vain: bool = False
    """It failed before its training began."""
    end_at: float | None = None
    """When its script's end began, after the last step."""
    lost_steps: int = 0
    """Of the training that is lost."""
    ended: ev.IncarnationEnded | None = None

    def forget_after(self, step: int, at: float) -> None:
        """Takes in that the training goes on from `step`: what was trained and saved beyond it is lost."""
        durable = max((saved for _, saved in self.saves), default=0)
        if durable <= step:
            return
        self.lost.append((_durable(self, step), at))
        self.lost_steps += durable - max(step, self.began or 0)
        self.saves = [(done, saved) for done, saved in self.saves if saved <= step]

    def reached(self, step: int) -> None:
        """Takes in that it has come to this step."""
        self.gained = self.gained or step > (self.began or 0)


@dataclass(slots=True)
class AccountEvents:
    """A reader of events: call it with each event and its time, oldest first; times are seconds since the epoch.

    `there`: when each GPU could be given to jobs: from its agent's call until the agent was gone or the GPU lost.
    `memory_mib`: of each GPU that said it. `chosen`: the policies and since when. `ends`: of attempts; `asked`:
    suspends, by purpose.
    """

    owners: dict[int, JobOwner] = field(default_factory=dict)
    work: dict[_Key, Work] = field(default_factory=dict)
    there: dict[GpuRef, list[Interval]] = field(default_factory=dict)
    chosen: list[tuple[float, str]] = field(default_factory=list)
    ends: list[tuple[float, ev.IncarnationEnded]] = field(default_factory=list)
    asked: list[tuple[float, int, str]] = field(default_factory=list)
    last_at: float = 0.0
    memory_mib: dict[GpuRef, int] = field(default_factory=dict)
    _since: dict[GpuRef, float] = field(default_factory=dict)
    _here: set[str] = field(default_factory=set)

    def __call__(self, event: ev.Event, at: float) -> None:
        """Take an event in."""
        before, self.last_at = self.last_at, max(self.last_at, at)
        match event:
            case ev.Progressed():
                work = self._work(event)
                work.step = max(event.step, work.step or 0)
                work.reached(event.step)
            case ev.IncarnationEvent():
                self._of_incarnation(event, at)
            case ev.JobSubmitted():
                self._submitted(event.job, event.spec)
            case ev.ArraySubmitted():
                for job, spec in zip(event.members, event.specs, strict=True):
                    self._submitted(job, spec)
            case ev.NodeEvent():
                self._of_node(event, at)
            case ev.DaemonStarted():
                # The one before it is gone since its last event, for all that is known.
                for gpu in list(self._since):
                    self._away(gpu, before)
                self._here.clear()
            case ev.PolicyChosen():
                self.chosen.append((at, event.policy))
            case _:
                pass

    def intervals(self, gpu: GpuRef, until: float) -> Iterator[Interval]:
        """When the GPU could be had, as far as `until`."""
        yield from self.there.get(gpu, ())
        if gpu in self._since and self._since[gpu] < until:
            yield self._since[gpu], until

    @property
    def gpus(self) -> set[GpuRef]:
        """All GPUs that ever were available."""
        return self.there.keys() | self._since.keys()

    def _submitted(self, job: int, spec: JobSpec) -> None:
        self.owners[job] = JobOwner(spec.user, spec.array, spec.tags)

    def _work(self, event: ev.IncarnationEvent) -> Work:
        return self.work.setdefault((event.job, event.incarnation), Work())

    def _of_incarnation(self, event: ev.IncarnationEvent, at: float) -> None:
        match event:
            case ev.Saved():
                work, done = self._work(event), at - max(0.0, event.age_s)
                work.saves.append((done, event.step))
                work.reached(event.step)
                if not event.final and event.seconds > 0:
                    work.saving.append((done - event.seconds, done))
            case ev.Reformed():
                work = self._work(event)
                if work.step is not None and event.step < work.step:
                    work.lost.append((_durable(work, event.step), at))
                    work.lost_steps += work.step - event.step
                work.step = event.step
                work.began = event.step if work.began is None else work.began
            case ev.TrainerReady():
                work = self._work(event)
                work.began = event.step if work.began is None else work.began
            case ev.TrainingDone():
                self._work(event).end_at = at - max(0.0, event.age_s)
            case ev.ResumedBehind():
                for (job, number), earlier in self.work.items():
                    if job == event.job and number <= event.incarnation:
                        earlier.forget_after(event.step, at)
            case ev.SuspendRequested():
                self.asked.append((at, event.job, event.purpose.value))
            case ev.IncarnationEnded():
                self.ends.append((at, event))
                saved = event.step is not None and event.reached is not None and event.step >= event.reached
                work = self._work(event)
                work.ended = event
                if work.end_at is not None and event.cause is not Cause.DONE:
                    work.lost.append((work.end_at, at))  # the end of its script starts over
                work.in_vain = event.cause in FAILURES and work.began is None and not work.gained
                # Who began and was cancelled before a step has trained nothing; who reports nothing may have.
                idle = event.cause is Cause.CANCELLED and work.began is not None and not work.gained
                if work.in_vain or idle or (event.cause not in KEPT and not saved):
                    work.lost.append((_durable(work, event.step), at))
                    work.lost_steps += max(0, (event.reached or 0) - max(event.step or 0, work.began or 0))
            case _:
                pass

    def _of_node(self, event: ev.NodeEvent, at: float) -> None:
        match event:
            case ev.NodeJoined():
                good = {GpuRef(event.node, gpu.index) for gpu in event.gpus if gpu.state != "lost"}
                for gpu in self._of(event.node) - good:
                    self._away(gpu, at)
                sizes = {GpuRef(event.node, gpu.index): gpu.memory_mib for gpu in event.gpus if gpu.memory_mib}
                self.memory_mib.update(sizes)
                for gpu in good:
                    self._since.setdefault(gpu, at)
                self._here.add(event.node)
            case ev.NodeSilent() | ev.NodeLost():
                for gpu in self._of(event.node):
                    self._away(gpu, at)
                self._here.discard(event.node)
            case ev.GpuChanged():
                gpu = GpuRef(event.node, event.index)
                if event.state == "lost":
                    self._away(gpu, at)
                elif event.node in self._here:
                    self._since.setdefault(gpu, at)
            case _:
                pass

    def _of(self, node: str) -> set[GpuRef]:
        return {gpu for gpu in self._since if gpu.node == node}

    def _away(self, gpu: GpuRef, at: float) -> None:
        since = self._since.pop(gpu, None)
        if since is not None and at > since:
            self.there.setdefault(gpu, []).append((since, at))


def _durable(work: Work, step: int | None) -> float:
    """Since when work is lost: since the last checkpoint at or below `step`, from the start without one."""
    kept = [at for at, saved in work.saves if step is None or saved <= step]
    return max(kept, default=-math.inf)


def owner_of(watch: AccountEvents, job: int) -> JobOwner:
    """The job's; of one whose submit is not known, an empty one."""
    return watch.owners.get(job, JobOwner("", 0))
