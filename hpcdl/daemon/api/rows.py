"""Rows: what the API answers about jobs, nodes and events, as plain JSON values (docs/api.md).

A job's row is made here and nowhere else; `ls`, `show`, `why`, the page, and the answers to submits and verbs hand it
on. Keys are only ever added. No value of an environment and nothing secret of a destination is in a row.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcdl.core.controller.journal import Journal
from hpcdl.core.model.events import ArraySubmitted, Recorded, encode
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.incarnation import Incarnation
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import redacted
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.series import not_finite_text
from hpcdl.core.model.sharing import holder_of, holders_of
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import GpuRef
from hpcdl.core.model.world import Job, JobState, World, beginning_of, can_suspend, lifts_hold
from hpcdl.core.rules.notices import failing
from hpcdl.core.rules.retention import is_retired
from hpcdl.daemon.api.why import NOBODY, nothing_here, reason, retries_used
from hpcdl.daemon.queue import Queue
from hpcdl.daemon.time_left import remaining
from hpcdl.ledger.maintenance import without_secrets
from hpcdl.wire.messages import GpuLine

Json = dict[str, Any]

SCHEMA = 1

_PLAIN = (JobState.STARTING, JobState.RESCALING, JobState.DONE)
"""States of which there is nothing more to say in a list."""

_OF_JOB = ("id", "submitted_at", "finished_at", "suspends", "held")
_OF_PROGRESS = ("step", "total", "saved_step")
_OF_SPEC = ("name", "user", "gpus_min", "gpus_max", "nodes", "rescale", "weight", "priority", "profile")
_OF_INCARNATION = ("number", "warm", "attached", "started_at", "membership", "rescale_at", "broken_at")
_OF_NODE = (
    *("name", "connected", "lost", "leaving", "until", "allocation", "reason", "cpus", "memory_mib", "emulated"),
    "agent_pid",
)
"""Attributes that rows have as they are, under their own names."""


def picked(value: object, names: Iterable[str]) -> Json:
    """These attributes of a value, by their names."""
    return {name: getattr(value, name) for name in names}


@dataclass(frozen=True, slots=True)
class RowBuilder:
    """Makes the rows of one answer, all of them of the same world at the same time."""

    world: World
    profiles: Profiles
    reasons: Mapping[int, str]  # the last plan's, by job
    now: float  # seconds since the epoch
    past: Mapping[int, Job] = field(default_factory=dict)  # jobs that have left the world, as far as they are wanted
    queue: Queue = NOBODY  # NOBODY where no row is to say its place
    idle: Mapping[int, str] = field(default_factory=dict)  # what is said of jobs that do not use all their GPUs
    not_finite: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # see `SeriesKeeper`
    nothing: str = field(init=False)  # `nothing_here`, which is the same for all rows

    def __post_init__(self) -> None:
        object.__setattr__(self, "nothing", nothing_here(self.world))

    def known(self, number: int) -> Job:
        """The job of the world, or of the past."""
        return self.world.jobs.get(number) or self.past[number]

    def job(self, job: Job, keys: Collection[str] | None = None) -> Json:
        """A job's row. `keys`: what of it is wanted; the rest may be null where it takes time to compute.

        The row of a job that has no incarnation and is to have no GPUs follows from the job, its target, the reasons,
        `nothing`, `queue.text`, `queue.note` and what is not finite of it alone; that of a finished one from the job
        and what is not finite of it (`JobList` relies on it).
        """
        spec, running = job.spec, job.running
        placement = running.placement if running is not None else None
        left = None if running is None else remaining(self.world, job, self.profiles, self.now)
        metric, diverged_at = self._metric(job)
        return {
            **picked(job, _OF_JOB),
            **picked(job.progress, _OF_PROGRESS),
            **picked(spec, _OF_SPEC),
            "state": state_of(job).value,
            "reason": self.reason(job) if keys is None or "reason" in keys else None,
            "note": self.note(job) if keys is None or "note" in keys else None,
            "nodes_max": spec.nodes if spec.nodes_max is None else spec.nodes_max,
            "array": spec.array or None,
            "array_index": spec.array_index if spec.array else None,
            "sweep": dict(spec.sweep) or None,
            "max_parallel": spec.array_most or None,
            "placement": {share.node: list(share.gpus) for share in placement.shares} if placement else None,
            "gpus": len(placement.gpus) if placement else 0,
            "role": placement.role.value if placement else None,
            "incarnation": job.last_incarnation,
            "started_at": job.first_start_at,
            "wait_s": None if job.first_start_at is None else job.first_start_at - job.submitted_at,
            "jct_s": None if job.finished_at is None else job.finished_at - job.submitted_at,
            "retries_used": retries_used(job),
            "can_suspend": can_suspend(job),
            "failures": job.failures.total,
            "cause": None if job.last.cause is None else job.last.cause.value,
            "detail": job.last.detail,
            "held_after": job.held_after or None,
            "exit_code": job.last.exit_code,
            "metric": metric,
            "not_finite_since": diverged_at,
            "eta_s": None if left is None else left.seconds,
            "eta_low_s": None if left is None else left.low,
            "eta_high_s": None if left is None else left.high,
            "end_since": None if running is None else running.end_at,
            "queue_position": self.queue.position(job),
            "annotations": dict(job.annotations) or None,
            "tags": list(spec.tags) or None,
            "links": dict(spec.links) or None,
            "setback": None if job.setback is None else to_json(job.setback),
        }

    def reason(self, job: Job) -> str:
        """Why it is in its state, in one line."""
        text = reason(self.world, job, self.reasons, self.nothing, self.now, self.queue)
        return text or ("" if job.running is None else self.not_finite_note(job) or self.idle.get(job.id, ""))

    def not_finite_note(self, job: Job) -> str:
        """Which of its metrics are not finite any more, and since when; "" where all are."""
        return not_finite_text(self.not_finite.get(job.id, {}))

    def _metric(self, job: Job) -> tuple[float | None, int | None]:
        """The job's metric, and since about which step it or a loss is not finite: one from before that is void."""
        since = self.not_finite.get(job.id, {})
        step = min((step for name, step in since.items() if name == "metric" or "loss" in name), default=None)
        measured = job.progress.accuracy[-1] if job.progress.accuracy else None
        if measured is None or "metric" in since or (step is not None and measured[0] < step):
            return None, step
        return measured[1], step

    def note(self, job: Job) -> str | None:
        """What its state does not say, in short; None where there is nothing to say, as of one that simply trains."""
        state = state_of(job)
        if state in _PLAIN:
            return "; ".join(filter(None, (_setback(job), self.not_finite_note(job)))) or None
        if job.held and not (job.live or job.finished):
            return f"held: hpcdl {lifts_hold(job)} {job.id}"
        text = self.queue.note(job, self.now) or self.reason(job)
        if text.lower() == state.lower():
            text = ""
        diverged = self.not_finite_note(job) if job.finished else ""
        return "; ".join(filter(None, (_setback(job), text, diverged))) or None

    def detail(self, job: Job) -> Json:
        """A job's row with its spec and what lives of it. Values of the environment stay in the ledger."""
        spec = to_json(job.spec)
        spec["env"] = [name for name, _ in job.spec.env]
        spec["notify"] = [redacted(each) for each in job.spec.notify]
        drill = None if job.drill is None else {**to_json(job.drill.result), "at": job.drill.at}
        incarnations = [self._incarnation(inc) for inc in job.live]
        return {
            **self.job(job),
            "spec": spec,
            "notify_failing": failing(self.world, job.spec.notify),
            "drill": drill,
            "deadline": deadline_of(job),
            "beginning": beginning_of(self.world, job),
            "incarnations": incarnations,
        }

    @staticmethod
    def _incarnation(incarnation: Incarnation) -> Json:
        return {
            **picked(incarnation, _OF_INCARNATION),
            "state": incarnation.state.value,
            "nodes": list(incarnation.nodes),
            "ready_at": None if incarnation.progress is None else incarnation.progress.ready_at,
            "purpose": None if incarnation.purpose is None else incarnation.purpose.value,
            "members": list(incarnation.members),
            "joining": [part.node for part in incarnation.joining] if incarnation.members else [],
            "leaving": [part.node for part in incarnation.parts if part.leaving and not part.gone],
        }

    def _role(self, gpu: GpuRef) -> str | None:
        """The role of the job that holds the GPU."""
        holder = holder_of(self.world, gpu)
        job = self.world.jobs.get(holder[0]) if holder is not None else None
        running = job.running if job is not None else None
        return None if running is None or running.placement is None else running.placement.role.value

    def node(self, name: str, samples: dict[int, GpuLine]) -> Json:
        """A node's row; `samples`: the newest one by GPU index."""
        node = self.world.nodes[name]
        gpus = []
        for gpu in node.gpus:
            holder, behind = holders_of(self.world, GpuRef(name, gpu.index))
            sample = samples.get(gpu.index)
            avoided = node.avoids(gpu.index)
            gpus.append(
                {
                    **to_json(gpu),
                    "holder": {"job": holder[0], "incarnation": holder[1]} if holder else None,
                    "background": {"job": behind[0], "incarnation": behind[1]} if behind else None,
                    "util": sample.util if sample else None,
                    "used_mib": sample.memory_mib if sample else None,
                    "power_w": sample.power_w if sample else None,
                    "health": to_json(sample.health) if sample and sample.health else None,
                    "avoided_until": avoided.until if avoided else None,
                    "avoid_reason": avoided.reason if avoided else "",
                    "role": self._role(GpuRef(name, gpu.index)),
                }
            )
        return {**picked(node, _OF_NODE), "place": list(node.place), "gpus": gpus}


def _setback(job: Job) -> str:
    """How it went on behind what was saved, until it has come as far again; "" where it did not."""
    if job.setback is None or job.finished or (job.progress.step or 0) >= job.setback.saved:
        return ""
    return job.setback.text


def deadline_of(job: Job) -> Json | None:
    """A job's deadline, and what is expected of it: `meets` null where nothing was predicted."""
    if job.spec.deadline is None:
        return None
    expected = job.expectation
    found: Json = {"at": job.spec.deadline, "meets": None, "slipped": False}
    if expected is not None:
        found |= to_json(expected)
    return {"since": None, "probability": None, "ends_at": None, **found}


JOB_KEYS = frozenset(RowBuilder(World(), Profiles(), {}, 0.0).job(Job(1, JobSpec(("train",), "train"), 0.0)))
"""The keys of a job's row."""


def event_row(record: Recorded) -> Json:
    """An event; of a submitted job's environment only the names, of destinations nothing secret."""
    return {
        **picked(record, ("seq", "at", "version")),
        **picked(record.event, ("stream", "kind")),
        "body": without_secrets(encode(record.event)),
    }


def events_of(journal: Journal, world: World, after: int, limit: int, job: int | None) -> list[Recorded]:
    """At most `limit` events after the seq `after`, of one job where given, oldest first. Raises JournalError.

    The submit of an array is an event of its first member; here it is one of every member.
    """
    known = None if job is None else world.jobs.get(job)
    if job is not None and is_retired(world, job):
        known = next(iter(journal.retired((job,))), None)
    array = 0 if known is None else known.spec.array
    found: list[Recorded] = []
    if array and array != job:
        first = journal.read(0, 1, array)
        found = [each for each in first if each.seq > after and isinstance(each.event, ArraySubmitted)]
    return (found + journal.read(after, limit, job))[:limit]
