"""Which hosts a job can have, and when: the scheduler's plan, and bslots' windows. Pure: values in, values out."""

from collections.abc import Mapping, Sequence

from tests.lsf.emulator.records import Config, Host, Job, Queue, Reservation, State

FOREVER = float("inf")


class Use:
    """Slots of a host from one time to another; `whole`: nobody else may use the host meanwhile."""

    __slots__ = ("begin", "end", "gpus", "host", "planned", "slots", "whole")

    def __init__(
        self, host: str, slots: int, begin: float, end: float, *, gpus: int = 0, whole: bool = False, planned: bool
    ) -> None:
        self.host, self.slots, self.begin, self.end = host, slots, begin, end
        self.gpus, self.whole, self.planned = gpus, whole, planned


def uses_of(job: Job, now: float) -> list[Use]:
    """What a job that has been started uses. A job that was suspended to make place uses nothing."""
    if job.status not in ("RUN", "USUSP"):
        return []
    gpus = {name: len(ids) for name, ids in job.gpu_ids}
    end = job.end_at(now)
    return [
        Use(
            host, slots, 0.0, end, gpus=gpus.get(host, 0), whole=job.exclusive or job.nodes > 0, planned=False
        )  # the past does not matter
        for host, slots in job.hosts
    ]


class Plan:
    """What uses the cluster's hosts, now and by plan."""

    def __init__(self, config: Config, state: State, now: float) -> None:
        self.config = config
        self.now = now
        self.closed = frozenset(state.closed)
        self.uses = [use for job in state.jobs for use in uses_of(job, now)]

    def compute_hosts(self) -> list[Host]:
        launch = self.config.launch_node
        return [host for host in self.config.hosts if host.name != launch and host.name not in self.closed]

    def free(self, host: Host, begin: float, end: float, *, keep_off: bool) -> tuple[int, int]:
        """Free slots and GPUs of a host all through a time. `keep_off`: not where it is planned for anybody later."""
        slots, gpus = host.slots, host.gpus
        for use in self.uses:
            if use.host != host.name or use.end <= begin:
                continue
            if use.begin >= end and not (use.planned and keep_off):
                continue
            if use.whole:
                return 0, 0
            slots, gpus = slots - use.slots, gpus - use.gpus
        return max(0, slots), max(0, gpus)

    def place(self, job: Job, begin: float, end: float, *, keep_off: bool) -> list[tuple[str, int]] | None:
        """Hosts for a job all through a time, with the launch node first; None where there are not enough."""
        hosts = [host for host in self.compute_hosts() if suits(job, host)]
        if job.wanted:
            hosts.sort(key=lambda host: list(job.wanted).index(host.name))
        found: list[tuple[str, int]] = []
        left = job.slots
        for host in hosts:
            slots, gpus = self.free(host, begin, end, keep_off=keep_off)
            if gpus < min(job.gpus, host.gpus) or job.gpus > host.gpus:
                continue
            if job.nodes:
                if slots == host.slots and len(found) < job.nodes:
                    found.append((host.name, host.slots))
                continue
            if job.exclusive and slots < host.slots:
                continue
            if job.ptile:
                take = min(job.ptile, left) if slots >= min(job.ptile, left) else 0
            else:
                take = min(slots, left)
            if take:
                found.append((host.name, take))
                left -= take
        enough = len(found) == job.nodes if job.nodes else left == 0
        if not enough:
            return None
        return [(self.config.launch_node, 1), *found] if self.config.launch_node else found

    def add(self, job: Job, hosts: Sequence[tuple[str, int]], begin: float, end: float, *, planned: bool) -> None:
        whole = job.exclusive or job.nodes > 0
        for name, slots in hosts:
            if name != self.config.launch_node:
                self.uses.append(Use(name, slots, begin, end, gpus=job.gpus, whole=whole, planned=planned))

    def earliest(self, job: Job, duration: float) -> tuple[float, list[tuple[str, int]]] | None:
        """When and where a job that cannot start now can, as far as run limits tell."""
        for begin in sorted({use.end for use in self.uses if self.now < use.end < FOREVER}):
            if (hosts := self.place(job, begin, begin + duration, keep_off=False)) is not None:
                return begin, hosts
        return None

    def window(self, job: Job) -> float:
        """The longest time from now for which a job finds a place, 0 for none."""
        ends = [*sorted({use.begin for use in self.uses if use.begin > self.now}), FOREVER]
        return max((end - self.now for end in ends if self.place(job, self.now, end, keep_off=False)), default=0.0)


def suits(job: Job, host: Host) -> bool:
    """Whether a job may be on a host at all."""
    return not job.wanted or host.name in job.wanted


def possible(config: Config, job: Job) -> bool:
    """Whether the cluster could ever hold a job."""
    empty = Plan(config, State(), 0.0)
    return empty.place(job, 0.0, FOREVER, keep_off=False) is not None


def victims(config: Config, state: State, plan: Plan, job: Job, queue: Queue, duration: float) -> list[Job] | None:
    """The jobs that must make place for one of a preemptive queue, the youngest of the lowest queue first.

    Those that are ending already come first of all. None where even all of them are not enough.
    """
    allowed = [each for each in state.jobs if each.status == "RUN" and _may_take(config, each, queue, plan.now)]
    priority = {each.name: each.priority for each in config.queues}
    allowed.sort(key=lambda each: (not each.ending, priority[each.queue], -each.started))
    uses = plan.uses
    try:
        plan.uses = list(uses)
        chosen: list[Job] = []
        for each in allowed:
            chosen.append(each)
            gone = {(use.host, use.slots, use.end) for use in uses_of(each, plan.now)}
            plan.uses = [use for use in plan.uses if (use.host, use.slots, use.end) not in gone or use.planned]
            if (hosts := plan.place(job, plan.now, plan.now + duration, keep_off=False)) is not None:
                names = {name for name, _ in hosts}
                return [one for one in chosen if any(name in names for name, _ in one.hosts[_skip(config) :])]
        return None
    finally:
        plan.uses = uses


def _skip(config: Config) -> int:
    return 1 if config.launch_node else 0


def _may_take(config: Config, job: Job, queue: Queue, now: float) -> bool:
    if job.ending:
        return True
    theirs = config.queue(job.queue)
    return theirs is not None and job.queue in queue.preempts and now - job.started >= theirs.guaranteed_s


def windows(config: Config, state: State, now: float, *, compute_only: bool) -> Mapping[float, list[tuple[str, int]]]:
    """Free slots by the time until which they are free: what bslots shows. Windows are not nested."""
    plan = Plan(config, state, now)
    planned: dict[str, float] = {}
    for reservation in state.reservations:
        for name, _ in reservation.hosts:
            planned[name] = min(planned.get(name, FOREVER), reservation.at)
    found: dict[float, list[tuple[str, int]]] = {}
    for host in plan.config.hosts:
        if host.name in plan.closed or (compute_only and "CN" not in host.resources):
            continue
        slots, _ = plan.free(host, now, now + 1e-6, keep_off=False)
        until = planned.get(host.name, FOREVER)
        if slots and until > now:
            found.setdefault(until, []).append((host.name, slots))
    return found


def reserved(job: Job, at: float, hosts: Sequence[tuple[str, int]]) -> Reservation:
    return Reservation(job=job.key, at=at, hosts=tuple(hosts))
