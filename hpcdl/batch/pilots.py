"""The policy for pilots: which to submit and which to cancel, by backfill holes, jobs, break-even and the site's
limits.

Pure: the same values give the same choice. The daemon's batch poll calls `pilot_policy(site)` with what the adapter has
seen and submits what is chosen. Pilots are guests: nothing here may make other users' batch jobs wait.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from hpcdl.batch.limits import PilotLimits
from hpcdl.core.model.pilot import BY_USER, Hole, PendingBatchJob, Pilot, PilotChoice, PilotSpec
from hpcdl.core.model.plan import JobView, PilotPolicy, Plan, View
from hpcdl.core.model.units import count, fold_nodes, natural, seconds_text
from hpcdl.core.model.world import Target

PAUSE_S, PAUSE_MAX_S = 60.0, 3600.0
"""After a refusal nothing is submitted for so long; each further one in a row doubles it."""

AFTER_USER_S = 600.0
"""After a pilot was cancelled by its user or an admin, nothing is submitted for so long."""

NO_AGENT = "no agent with a GPU has come"
"""Why a pilot is cancelled that nobody can train on: its agents cannot reach us, or its nodes show no GPU."""

AT_ONCE_S = 60.0
"""A pilot that failed within so long of its start most likely never worked, and neither will the next one."""

OTHERS = "others wait for its nodes"
"""Why a pilot is given back, with the batch job that waits."""

PREEMPTS_S = 60.0
"""A batch job that the batch system could end pilots for, and that still waits after so long, is helped."""

KEPT_S, LEFT_S = 60.0, 600.0
"""Nodes that were given back are not asked for again within the first, nor within the second while others wait for
them; so long idle nodes are left, too, to who could start there and can preempt nobody.
"""

NO_QUEUES = (
    "no queue is named for them: name those that pilots may use under queues in the site's file "
    "(hpcdl doctor --site writes one, and says which are preemptable)"
)

NO_END_S = 6 * 3600.0
"""How long a hole without a known end is taken to last."""


def choose(
    view: View,
    plan: Plan,
    pilots: Sequence[Pilot],
    holes: Sequence[Hole],
    known: Set[str],
    waiting: Sequence[PendingBatchJob] = (),
    *,
    site: PilotLimits,
) -> PilotChoice:
    """See `PilotPolicy`. Same arguments, same choice.

    A hole whose end is known is taken by one pilot, for its nodes end together anyway. Without a known end, somebody
    may take any node of it back at any time, and a batch job is preempted whole: there each node gets a pilot of its
    own, as far as the site's number of pilots allows. Pilots are guests: only queues that are named and preemptable are
    used, and what others' batch jobs wait for, and could use, is given back.
    """
    living = [pilot for pilot in pilots if not pilot.over]
    if not site.pilots_max and not living:
        return PilotChoice()
    choice = _Choice(view, plan, living, known, site, _startup_s(view, living, site))
    choice.leave_to(waiting, holes, pilots)
    cancel = choice.unwanted()
    refused_until, why = _pause(pilots, view.now, known)
    if any(why.startswith(NO_AGENT) for _, why in cancel):
        return PilotChoice((), cancel, (), choice.wake_at)
    if refused_until > view.now:
        left = seconds_text(refused_until - view.now)
        note = f"{why}: the next one is tried in {left}"
        return PilotChoice((), cancel, (note,), refused_until)
    if not site.queues:
        return PilotChoice((), cancel, (NO_QUEUES,), choice.wake_at)
    for hole in sorted(holes, key=lambda each: (-_end(each, view.now), -(each.gpus or 0), each.queue, each.nodes)):
        choice.fill(hole)
    return PilotChoice(tuple(choice.ask), cancel, tuple(choice.notes), choice.wake_at)


def walltime_s(hole: Hole, now: float, site: PilotLimits) -> float:
    """The walltime of a pilot that takes the hole: within it, with the margin, in the site's steps; 0.0 for none."""
    most = _end(hole, now) - now - site.margin_s
    for limit in (hole.walltime_s, site.walltime_max_s):
        most = most if limit is None else min(most, limit)
    return max(0.0, math.floor(most / site.walltime_step_s) * site.walltime_step_s)


def pays_s(site: PilotLimits, startup_s: float) -> float:
    """The shortest walltime that pays: what is left of it after the start-up is the useful part that the site wants."""
    return max(site.walltime_min_s, startup_s / (1.0 - site.useful))


def _end(hole: Hole, now: float) -> float:
    return now + NO_END_S if hole.until is None else hole.until


def _startup_s(view: View, living: Sequence[Pilot], site: PilotLimits) -> float:
    """From a pilot's start until its first agent was there: the median of those that run.

    At most what a pilot without agents is waited for: a node that was lost and came again says nothing of start-ups.
    """
    joined = {node.name: node.since for node in view.nodes}
    seen = []
    for pilot in living:
        if pilot.job is not None and pilot.job.started_at is not None:
            begin = pilot.job.started_at
            seen += sorted(joined[name] - begin for name in pilot.nodes if joined.get(name, -math.inf) >= begin)[:1]
    return min(statistics.median(seen), _agents_within_s(site)) if seen else site.startup_s


def _agents_within_s(site: PilotLimits) -> float:
    """A pilot whose agents have not come by then is of no use."""
    return max(site.patience_s, 4 * site.startup_s)


def _pause(pilots: Sequence[Pilot], now: float, known: Set[str]) -> tuple[float, str]:
    """Until when nothing is submitted, and why: the last pilots were refused, failed, or waited in vain, in a row.

    One that waits in vain may have lost its hole, which is nobody's fault; a second one in a row may never be able to
    start (some sites take batch jobs that are over their limits, and leave them waiting).
    """
    by_hand = [pilot for pilot in pilots if pilot.cancelled == BY_USER or _ended_by_hand(pilot)]
    if by_hand and (last_at := max(pilot.since for pilot in by_hand) + AFTER_USER_S) > now:
        return last_at, "a pilot was cancelled by hand"  # the next one would take the same nodes at once
    streak: list[Pilot] = []
    for pilot in sorted(pilots, key=lambda each: each.id, reverse=True):
        waited_in_vain = pilot.over and not pilot.refused and _never_ran(pilot)
        if _refused(pilot) or _no_use(pilot) or _failed_at_once(pilot) or waited_in_vain:
            streak.append(pilot)
        elif pilot.batch_id and not _never_ran(pilot) and (pilot.over or not known.isdisjoint(pilot.nodes)):
            break
    sure = any(_refused(each) or _no_use(each) or _failed_at_once(each) for each in streak)
    times = len(streak) - (0 if sure else 1)
    if times <= 0:
        return -math.inf, ""
    last = streak[0]
    pause_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** (times - 1))
    if _no_use(last):
        return (last.since if last.over else now) + pause_s, f"the last pilot was of no use ({last.cancelled})"
    if _failed_at_once(last):
        return last.since + pause_s, f"the last pilot failed at once ({last.how}; see logs/pilots/p{last.id}.log)"
    what = "the batch system refused the last pilot" if _refused(last) else "the last pilots waited in vain"
    why = last.how if _refused(last) else (last.job.reason if last.job is not None else "")
    return last.since + pause_s, f"{what} ({why})" if why else what


def _refused(pilot: Pilot) -> bool:
    """By the batch system; one that was not wanted any more was never submitted."""
    return pilot.refused and not pilot.cancelled


def _ended_by_hand(pilot: Pilot) -> bool:
    """By somebody who is not us: an admin, or its user past us."""
    return pilot.over and not pilot.cancelled and pilot.job is not None and pilot.job.by_hand


def _no_use(pilot: Pilot) -> bool:
    return pilot.cancelled.startswith(NO_AGENT)


def _failed_at_once(pilot: Pilot) -> bool:
    """By its own word: its exit code is no signal's, and nobody took its nodes."""
    job = pilot.job
    if job is None or not pilot.over or pilot.cancelled or job.preempted or not 0 < (job.code or 0) < 128:
        return False
    return pilot.since - (pilot.asked_at if job.started_at is None else job.started_at) < AT_ONCE_S


def _never_ran(pilot: Pilot) -> bool:
    return pilot.job is None or (pilot.job.started_at is None and not pilot.job.nodes)


@dataclass(slots=True)
class _Choice:
    """One choice while it is being made. `living`: also those that are cancelled, which take up limits to their end."""

    view: View
    plan: Plan
    living: list[Pilot]
    known: Set[str]
    site: PilotLimits
    startup_s: float
    ask: list[PilotSpec] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wake_at: float | None = None
    _wanted: dict[tuple[int, float], int] = field(default_factory=dict)
    _coming: Counter[str] = field(default_factory=Counter)  # by queue: nodes of pilots whose agents are to come
    _taken: set[str] = field(default_factory=set)  # nodes that pilots hold, or have asked for by name
    _targets: Mapping[int, Target] = field(init=False)  # a large plan is put into words once, not for each hole
    _free: int | None = None
    _back: dict[int, str] = field(default_factory=dict)  # pilots to give back, and for which batch job
    _left: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)  # nodes: for whom, and what it preempts

    def __post_init__(self) -> None:
        self._targets = self.plan.by_job()
        for pilot in self.living:
            self._taken.update(pilot.nodes or pilot.spec.on)

    def leave_to(self, waiting: Sequence[PendingBatchJob], holes: Sequence[Hole], pilots: Sequence[Pilot]) -> None:
        """Which pilots are given back to others' batch jobs that wait, and which idle nodes are left to them.

        A batch job that has not enough nodes even so is none of our business: its hole ends when it is to start. One
        that did not start on what was given back for it waits for something else.
        """
        now = self.view.now
        in_vain = {pilot.cancelled for pilot in pilots if pilot.over and now - pilot.since >= LEFT_S}
        idle = {node: None for hole in holes for node in hole.nodes if not self._is_taken(node)}
        held = {node: pilot for pilot in self.living for node in pilot.nodes}
        for job in waiting:
            free = [node for node in job.nodes if node in idle]
            ours = [node for node in job.nodes if node in held]
            if len(free) + len(ours) < job.count or _for(job) in in_vain:
                continue
            taken = free[: job.count]
            if now - job.since < LEFT_S:
                self._wake(job.since + LEFT_S)
                self._left.update((node, (job.id, job.preempts)) for node in taken)
            for node in taken:
                del idle[node]
            if len(taken) == job.count:
                continue  # it starts by itself
            patient = [node for node in ours if held[node].spec.queue in job.preempts]
            if patient and now - job.since < PREEMPTS_S:
                self._wake(job.since + PREEMPTS_S)
                continue
            self._give_back(job, job.count - len(taken), ours, held)
        self._keep(waiting, pilots)

    def _give_back(self, job: PendingBatchJob, number: int, ours: Sequence[str], held: dict[str, Pilot]) -> None:
        """So many of our nodes: of pilots that go anyway, that train nothing, then of the newest."""
        used = {share.node for each in self.view.jobs if each.placement for share in each.placement.shares}
        some = {held[node].id: held[node] for node in ours}
        ordered = sorted(
            some.values(),
            key=lambda each: (not each.cancelled and each.id not in self._back, bool(used & {*each.nodes}), -each.id),
        )
        for pilot in ordered:
            if number <= 0:
                return
            if not pilot.cancelled:
                self._back.setdefault(pilot.id, _for(job))
            coming = [node for node in ours if held.get(node) is pilot]
            number -= len(coming)
            for node in coming:  # one batch job gets it, and the next one another
                del held[node]

    def _keep(self, waiting: Sequence[PendingBatchJob], pilots: Sequence[Pilot]) -> None:
        """What was given back is not asked for again at once."""
        wanted = {node: job for job in waiting for node in job.nodes}
        for pilot in pilots:
            if not pilot.cancelled.startswith(OTHERS):
                continue
            for node in () if pilot.job is None else pilot.job.nodes:
                job = wanted.get(node)
                until = (pilot.since if pilot.over else self.view.now) + (KEPT_S if job is None else LEFT_S)
                if until > self.view.now:
                    self._wake(until)
                    self._left[node] = ("" if job is None else job.id, frozenset())

    def unwanted(self) -> tuple[tuple[int, str], ...]:
        """Pilots to be cancelled, and why."""
        found = []
        targets = self._targets
        used = {share.node for job in self.view.jobs if job.placement for share in job.placement.shares}
        used |= {share.node for target in targets.values() if target.placement for share in target.placement.shares}
        largest = max((pilot.spec.gpus or 0 for pilot in self.living), default=0) or self._usual_gpus()
        idle = not waits(self.view) and not demand(self.view, targets, largest, NO_END_S)
        for pilot in self.living:
            if pilot.cancelled:
                continue
            if pilot.id in self._back:
                found.append((pilot.id, self._back[pilot.id]))
                continue
            waited = self.view.now - pilot.since
            if not pilot.nodes:
                if idle and not used.intersection(pilot.spec.on):
                    found.append((pilot.id, "no job could train on it any more"))
                elif waited >= self.site.patience_s:
                    found.append((pilot.id, f"it has waited for {seconds_text(waited)}: its backfill hole is gone"))
                else:
                    self._wake(pilot.since + self.site.patience_s)
            elif not self._has_joined(pilot):
                late_at = pilot.since + _agents_within_s(self.site)
                if self.view.now >= late_at:
                    found.append((pilot.id, f"{NO_AGENT} in {seconds_text(waited)}"))
                else:
                    self._wake(late_at)
            elif idle and not used.intersection(pilot.nodes):
                found.append((pilot.id, "nothing is left to train on it"))
        given_up = {number for number, _ in found}
        stay = [pilot for pilot in self.living if not pilot.cancelled and pilot.id not in given_up]
        stay.sort(key=lambda each: (bool(used.intersection(each.nodes)), -each.id))
        for pilot in stay[: max(0, len(stay) - self.site.pilots_max)] if self.site.pilots_max else ():
            found.append((pilot.id, f"the site allows {count(self.site.pilots_max, 'pilot')}"))  # some were found again
            given_up.add(pilot.id)
        for pilot in self.living:
            if not pilot.cancelled and pilot.id not in given_up:
                nodes = pilot.nodes
                away = sum(node not in self.known for node in nodes) if nodes else pilot.spec.nodes
                self._coming[pilot.spec.queue] += away
        return tuple(found)

    def _has_joined(self, pilot: Pilot) -> bool:
        return not self.known.isdisjoint(pilot.nodes)

    def _wake(self, at: float) -> None:
        if at > self.view.now and (self.wake_at is None or at < self.wake_at):
            self.wake_at = at

    def fill(self, hole: Hole) -> None:
        """Adds pilots for a hole, or a note why not."""
        site, name = self.site, _name(hole)
        if hole.queue not in site.queues:
            return
        if not hole.preemptable and not site.pilots_without_preemption:
            note = (
                f"queue {hole.queue} is not preemptable ({hole.why_not or 'its batch jobs are not ended for others'}): "
                "name a preemptable one under queues in the site's file, or set pilots_without_preemption: true there"
            )
            if note not in self.notes:
                self.notes.append(note)
            return
        nodes = [node for node in hole.nodes if node not in site.without and not self._is_taken(node)]
        left = [node for node in nodes if node in self._left and hole.queue not in self._left[node][1]]
        if left:
            nodes = [node for node in nodes if node not in left]
            jobs = sorted({self._left[node][0] for node in left} - {""}, key=natural)
            whom = f"batch job {', '.join(jobs)}" if jobs else "others"
            self.notes.append(f"{fold_nodes(left)} in {hole.queue}: left to {whom}")
        free = len(nodes) if hole.nodes else hole.count - self._on_its_way(hole.queue)
        if free <= 0:
            return
        time_s = walltime_s(hole, self.view.now, site)
        pays = pays_s(site, self.startup_s)
        if time_s < pays:
            lasts = seconds_text(max(0.0, time_s))
            self.notes.append(
                f"{name}: a pilot of {lasts} is shorter than the {seconds_text(pays)} that pay "
                f"(start-up {seconds_text(self.startup_s)}, margin {seconds_text(site.margin_s)})"
            )
            return
        wanted = self._demand(hole.gpus or self._usual_gpus(), time_s - self.startup_s)
        if wanted <= 0:
            self.notes.append(f"{name}: no job could train on more nodes")
            return
        number = min(free, wanted, self._nodes_left())
        if number <= 0:
            self.notes.append(f"{name}: the site allows {site.nodes_total} nodes for pilots")
            return
        for size in self._sizes(number, hole):
            on = tuple(nodes[:size])
            del nodes[:size]
            self.ask.append(PilotSpec(size, time_s, hole.queue, hole.gpus, on if hole.nodes else (), _why(hole, size)))
            self._taken.update(self.ask[-1].on)
        asked = sum(each.nodes for each in self.ask)
        if asked < wanted and len(self.living) + len(self.ask) >= site.pilots_max:
            self.notes.append(f"the site allows {count(site.pilots_max, 'pilot')}, and there are as many")

    def _demand(self, gpus: int, window_s: float) -> int:
        """Nodes wanted beyond those that are used, on their way, or asked for in this choice."""
        key = (gpus, window_s)
        if key not in self._wanted:
            self._wanted[key] = demand(self.view, self._targets, gpus, window_s)
        return self._wanted[key] - self._on_its_way(None) - self._unused()

    def _usual_gpus(self) -> int:
        """GPUs of a node of which nobody says how many it has: as those that are here, and enough for any one job."""
        return max([self.view.largest_node, 1, *(job.gpus_min for job in self.view.jobs)])

    def _unused(self) -> int:
        """Nodes that are there and of which the plan uses nothing: they are given out before others are asked for."""
        if self._free is None:
            used = {share.node for each in self._targets.values() if each.placement for share in each.placement.shares}
            taken = used | set(self.view.held)
            waiting = [job.gpus_min for job in self.view.jobs if job.id not in self._targets or job.placement is None]
            least = min(waiting, default=1)  # a login node with one GPU is no node for a job that needs four
            free = [node for node in self.view.nodes if node.name not in taken and len(node.gpus) >= least]
            self._free = len(free)
        return self._free

    def _on_its_way(self, queue: str | None) -> int:
        """Nodes of pilots whose agents have not come yet, those of this choice included."""
        coming = self._coming.total() if queue is None else self._coming[queue]
        return coming + sum(each.nodes for each in self.ask if queue is None or each.queue == queue)

    def _is_taken(self, node: str) -> bool:
        """Whether a pilot holds the node or has asked for it by name, or its agent is here."""
        return node in self._taken or node in self.known

    def _nodes_left(self) -> int:
        total = self.site.nodes_total
        if total is None:
            return 1 << 30
        held = sum(len(pilot.nodes) or pilot.spec.nodes for pilot in self.living)
        return total - held - sum(each.nodes for each in self.ask)

    def _sizes(self, nodes: int, hole: Hole) -> list[int]:
        """Into pilots of which sizes so many nodes of the hole are divided."""
        left = self.site.pilots_max - len(self.living) - len(self.ask)
        most = min(self.site.nodes_max or nodes, hole.nodes_max or nodes)
        together = hole.until is not None
        size = min(most, nodes) if together else 1
        if left <= 0:
            return []
        if not together and nodes > left:
            size = min(most, -(-nodes // left))
        found: list[int] = []
        while nodes > 0 and len(found) < left:
            found.append(min(size, nodes))
            nodes -= found[-1]
        return found


def _for(job: PendingBatchJob) -> str:
    return f"{OTHERS}: batch job {job.id}"


def _name(hole: Hole) -> str:
    which = fold_nodes(hole.nodes) if hole.nodes else count(hole.count, "node")
    return f"{which} in {hole.queue}" if hole.queue else which


def _why(hole: Hole, nodes: int) -> str:
    ends = "" if not hole.why else f", until {hole.why}" if hole.until is not None else f": {hole.why}"
    return f"{count(nodes, 'idle node')}{ends}"


def pilot_policy(site: PilotLimits) -> PilotPolicy:
    """`choose` for one site."""
    return partial(choose, site=site)


def demand(view: View, targets: Mapping[int, Target], gpus: int, window_s: float) -> int:
    """Nodes with `gpus` GPUs each that would be trained on, beyond those that the plan uses, if they came now.

    `window_s`: how long they would stay. Elastic jobs count as far as they get faster, and as far as to go to more
    nodes pays back within the window (BFTrainer's cost terms, its section 3.4); jobs of one node are packed by GPUs.
    """
    nodes, packed = 0, 0
    for job in view.jobs:
        if job.blocked:
            continue
        target = targets.get(job.id)
        placement = None if target is None else target.placement
        if placement is None:
            if job.gpus_min > gpus or not _starts(job, window_s):
                continue
            if job.nodes == 1 and job.nodes_max == 1:
                packed += job.best_gpus(gpus)
            else:
                nodes += _grown(job, job.nodes, min(gpus, job.gpus_max), window_s)
        elif job.nodes_max > len(placement.shares) and placement.per_node <= gpus:
            now = len(placement.shares)
            nodes += _grown(job, now, placement.per_node, window_s) - now
    return nodes + -(-packed // gpus) if gpus else nodes


def waits(view: View) -> bool:
    """Whether any job is only blocked for a while (a pause after a failure), so that nodes are wanted again soon."""
    return any(job.blocked and job.retry_at > view.now for job in view.jobs)


def _starts(job: JobView, window_s: float) -> bool:
    """Whether a job that waits gets anything done in a window, after its start and before its save."""
    profile = job.profile
    return profile is None or window_s > job.rescale_s(job.nodes, job.gpus_min) + profile.save_s


def _grown(job: JobView, now: int, per_node: int, window_s: float) -> int:
    """The number of nodes, `now` or more, on which the job gets most done in the window."""
    profile = job.profile
    if profile is None:
        return job.nodes_max  # nobody knows better; what it shows there is measured
    rate = profile.rate(per_node, now)
    best, most = now, rate * window_s
    for nodes in range(now + 1, job.nodes_max + 1):
        grown = profile.rate(per_node, nodes)
        if grown <= rate:
            continue
        done = grown * max(0.0, window_s - job.rescale_s(nodes, per_node))
        if done > most:
            best, most = nodes, done
    return best
