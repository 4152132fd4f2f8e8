"""Why a job is in its state, in words and numbers: a row's reason, and the details of `hpcdl why`.

It reads the world, the last plan's reasons and the queue, and changes nothing. Sentences are the users': they name who
is in the way, how many GPUs are missing, and the command that helps.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hpcdl.core.controller.view_builder import blocked_why
from hpcdl.core.model.arrays import members_of
from hpcdl.core.model.health import Avoided
from hpcdl.core.model.incarnation import Incarnation, IncarnationState, Placement, Purpose, Role
from hpcdl.core.model.pilot import Pilot
from hpcdl.core.model.sharing import grant_refusal, holder_of, known_memory_mib, pair_refusal, partners_of, takers
from hpcdl.core.model.transitions import state_of
from hpcdl.core.model.units import count, fold_nodes, memory_text, seconds_text
from hpcdl.core.model.world import (
    UNDECIDED,
    Job,
    JobState,
    Node,
    World,
    can_suspend,
    cancelled_text,
    has_own_handler,
    held_text,
)
from hpcdl.core.rules.batch_poll import with_agents
from hpcdl.core.rules.exemption import STARTS, exemption
from hpcdl.daemon.queue import Queue, jobs_text, place_text

NOBODY = Queue()
"""A queue that was not looked at."""

NO_JOB = 0
"""The id of no job: under it, reasons by job may have what is said of a job that waits and has none of its own."""

MOST_NAMED = 5
"""Jobs that one line names."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`reason`: one line. `details`: more lines."""

    reason: str
    details: tuple[str, ...]


def explain(world: World, job: Job, said: Mapping[int, str], now: float, queue: Queue = NOBODY) -> Explanation:
    """The answer of `hpcdl why`. `said`: the last plan's reasons by job."""
    text = reason(world, job, said, now=now, queue=queue)
    planned = _planned(world, job, said)
    details = _details(world, job, now)
    if not text:
        text = planned
    elif queue.text(job, now) and planned and planned not in text:
        details.insert(0, f"policy {world.policy}: {planned}")
    light = job.spec.light_steps is not None  # which waits for GPUs to idle
    if job.running is None and not (light or job.finished or job.id in world.targets or blocked_why(world, job, now)):
        text += _exempt(world, job, now)
    return Explanation(text, tuple(details))


def _planned(world: World, job: Job, said: Mapping[int, str]) -> str:
    """What the policy says of the job."""
    target = world.targets.get(job.id)
    return said.get(job.id, target.reason if target is not None else "")


def _exempt(world: World, job: Job, now: float) -> str:
    """Which jobs may not be preempted yet for one that waits; "" where that is not what it waits for."""
    ends: dict[int, float | None] = {}
    in_end: list[int] = []
    for number in world.live:
        other = world.jobs[number]
        known = exemption(world, other, None, STARTS) if can_suspend(other) else None
        if known is not None and now < known.suspend_until and other.spec.priority >= job.spec.priority:
            if known.suspend_until == math.inf:
                in_end.append(number)
            else:
                ends[number] = known.suspend_until if known.begun else None
    if not ends:
        return f"; {jobs_text(world, sorted(in_end)[:MOST_NAMED], job)}: the end of its script runs" if in_end else ""
    first = min((at for at in ends.values() if at is not None), default=None)
    names = ", ".join(map(str, sorted(ends)[:MOST_NAMED])) + (", ..." if len(ends) > MOST_NAMED else "")
    kept = f"job {names} is kept" if len(ends) == 1 else f"jobs {names} are kept"
    until = f"until {'it has' if len(ends) == 1 else 'they have'} trained {STARTS:g} times as long as the start took"
    left = "" if first is None else f", about {seconds_text(first - now)} more"
    return f"; {kept} {until}{left}{' for the first' if left and len(ends) > 1 else ''}"


def reason(
    world: World,
    job: Job,
    said: Mapping[int, str],
    nothing: str | None = None,
    now: float | None = None,
    queue: Queue = NOBODY,
) -> str:
    """Why the job is in its state, in one line; "" for one that trains as it should.

    `said`: the last plan's reasons by job, and NO_JOB's; `nothing`: `nothing_here`, where it is known already. Of a job
    that holds nothing and is to have nothing, it follows from these two, the job and `queue.text` alone.
    """
    state = state_of(job)
    if job.outcome is not None:
        return job.last.detail or {JobState.DONE: "finished"}.get(job.outcome, str(job.outcome).lower())
    if job.cancelling:
        return f"{cancelled_text(job)}; its processes are ending"
    target = world.targets.get(job.id)
    planned = _planned(world, job, said)
    running = job.running
    at = world.at if now is None else now
    if running is not None and running.state is IncarnationState.SAVING:
        return _saving(world, job, running, planned, queue, at)
    if running is not None and running.stall is not None:
        ends = "; it is being started again" if running.ending is not None else ""
        return running.stall.text(job.progress.step, at) + ends
    if state is JobState.STARTING and running is not None:
        waits = [part.node for part in running.parts if not part.started]
        return f"its processes are starting on {fold_nodes(waits)}" if waits else "its processes get ready to train"
    if state is JobState.RUNNING and running is not None and running.end_at is not None:
        return f"all steps done: its script's end has run for {seconds_text(max(0.0, at - running.end_at))}"
    if state is JobState.RUNNING and running is not None and _all_here(world, running):
        return ""
    if running is None and target is not None and target.placement is not None:
        return _waits_for_gpus(world, job, target.placement) or planned
    if job.held:
        over = "; it starts over" if _starts_over(job) else "; its script's end starts over" if job.ends_cut else ""
        return f"{held_text(job)}{over}"
    nothing = nothing_here(world) if nothing is None else nothing
    if nothing:
        return f"needs {count(job.spec.gpus_min, 'GPU')}; {nothing}" if world.nodes else nothing
    return queue.text(job, at) or planned or said.get(NO_JOB, UNDECIDED)


def _starts_over(job: Job) -> bool:
    """Whether what the job has done so far is lost."""
    return job.first_start_at is not None and job.progress.saved_step is None and not can_suspend(job)


def _all_here(world: World, running: Incarnation) -> bool:
    """Whether all its GPUs may be granted: none is lost or excluded, no node is away or being left."""
    shares = () if running.placement is None else running.placement.shares
    return all(set(share.gpus) <= set(world.nodes[share.node].usable) for share in shares)


def _saving(world: World, job: Job, running: Incarnation, planned: str, queue: Queue, now: float) -> str:
    """Why a job saves its checkpoint and gives its GPUs back, for whom, and when it resumes."""
    wanted = _wanted_by(world, job, running)
    if running.end_at is not None:
        given = takers(world, job, running)
        why = wanted or (f"{jobs_text(world, given, job)} comes first" if given else planned)
        text = "DONE if its script's end is over within the grace period, else that starts over"
        return f"{text}: {why}" if why else text
    if wanted:
        return f"saving its checkpoint, then freeing its GPUs: {wanted}"
    target = world.targets.get(job.id)
    if target is not None and target.placement is not None:
        where = f"{count(len(target.placement.gpus), 'GPU')} of {fold_nodes(target.placement.nodes)}"
        return f"saving its checkpoint to move to {where}"
    wanting = job.suspended_for or takers(world, job, running)
    if not wanting:
        return f"saving its checkpoint, then freeing its GPUs{f': {planned}' if planned else ''}"
    place = queue.places.get(job.id)
    resumes = f"; {place_text(place, now)}" if place is not None else ""
    return f"being preempted by {jobs_text(world, wanting, job)}{resumes}"


def nothing_here(world: World) -> str:
    """Why no job can run: no agent, or no GPU, with the next step; "" where there are GPUs, or may be again."""
    if not world.nodes:
        return "no node has an agent: hpcdl daemon status"
    here = [node for node in world.nodes.values() if node.connected and not node.lost]
    if not here or any(node.gpus for node in here):
        return all_avoided(world) or _all_left(here) or _all_held(here)
    without = f"no GPU was found on {fold_nodes(node.name for node in here)}"
    coming = sum(1 for pilot in world.pilots.values() if not pilot.over)
    more = "hpcdl daemon start --emulate-gpus N emulates some"
    if coming:
        more = f"{count(coming, 'pilot')} may bring some: hpcdl pilots"
    elif world.pilots:
        more = "hpcdl pilots says why none is on its way"
    elif any(node.allocation for node in here):
        more = "ask the batch system for some; HPCDL_EMULATE_GPUS=N for its job script emulates them"
    return f"{without} ({more})"


def _all_held(here: Sequence[Node]) -> str:
    """Where every GPU that there is cannot be granted, and it is known who holds some: which, and who; else ""."""
    gpus = [(node.name, gpu) for node in here for gpu in node.gpus]
    if not gpus or any(gpu.state == "ok" for _, gpu in gpus):
        return ""
    held = [f"GPU {name}:{gpu.index}: {gpu.detail}" for name, gpu in gpus if gpu.state == "dirty" and gpu.detail]
    more = f", and {len(held) - MOST_NAMED} more" if len(held) > MOST_NAMED else ""
    return f"{'; '.join(held[:MOST_NAMED])}{more}: none is granted before that has gone" if held else ""


def _all_left(here: Sequence[Node]) -> str:
    """Where every node that has an agent is being left: which, and why; else ""."""
    if not here or not all(node.leaving for node in here):
        return ""
    names = fold_nodes(node.name for node in here)
    reasons = "; ".join(dict.fromkeys(node.reason for node in here if node.reason))
    told = f"{names} {'is' if len(here) == 1 else 'are'} being left" + (f" ({reasons})" if reasons else "")
    ours = not any(node.allocation for node in here)  # else a batch job ends, which nobody can take back
    return f"{told}: hpcdl undrain {names}" if ours else told


def _wanted_by(world: World, job: Job, saving: Incarnation) -> str:
    """Who wants it suspended, or "" for the policy, whose reason says it better."""
    if saving.purpose is Purpose.HOLD:
        return "its user suspended it" if job.held else "its user suspended it, and lifted that since; it resumes then"
    if world.stopping:
        return "the daemon is stopping"
    if saving.purpose is Purpose.STOP:
        return "the daemon was stopped; its agent has not reported how that ended"
    return "its user holds it" if job.held else ""


def _waits_for_gpus(world: World, job: Job, placement: Placement) -> str:
    background = placement.role is Role.BACKGROUND
    held = [
        (gpu, holder)
        for gpu in placement.gpus
        if grant_refusal(world, gpu, job, background=background) and (holder := holder_of(world, gpu)) is not None
    ]
    if held:
        jobs = sorted({holder[0] for _, holder in held})
        by = f"{'job' if len(jobs) == 1 else 'jobs'} {', '.join(map(str, jobs))}"
        free = f"{'frees' if len(jobs) == 1 else 'free'} {'it' if len(placement.gpus) == 1 else len(held)}"
        return f"waiting for {count(len(placement.gpus), 'GPU')}: starts as soon as {by} {free}"
    away = [gpu for gpu in placement.gpus if gpu.number not in world.nodes[gpu.node].usable]
    return f"waits for {', '.join(map(str, away))} to come back" if away else ""


def _shared_with(job: Job, other: Job) -> str:
    """Who is on its GPUs beside it, and what was agreed."""
    front, back = (other, job) if job.running is not None and job.running.is_background else (job, other)
    limit = None if front.spec.share is None else front.spec.share.slowdown
    memory = " and ".join(memory_text(each) for each in map(known_memory_mib, (front, back)) if each is not None)
    slow = "" if limit is None else f", which may slow it down by {100 * limit:g} %"
    if job is front:
        return f"job {back.id} runs on its GPUs as background{slow} (memory: {memory})"
    slow = "" if limit is None else f", which it may slow down by {100 * limit:g} %"
    return f"job {front.id} is the foreground of its GPUs{slow} (memory: {memory})"


def _beside_nobody(world: World, job: Job) -> list[str]:
    """Why a job that waits cannot run as a background, beside which foregrounds."""
    if job.spec.share is None or not job.spec.share.as_background:
        return []
    if job.spec.rescale != "restart":
        return ["runs beside nobody: what is rescaled in place shares its GPUs as a foreground only"]
    refused: dict[str, list[int]] = {}
    for gpu, (number, _) in world.holders.items():
        other = world.jobs[number]
        if other.spec.share is not None and other.spec.share.as_foreground:
            why = pair_refusal(world, gpu, other, job)
            if why and number not in refused.setdefault(why, []):
                refused[why].append(number)
    return [
        f"cannot run beside {jobs_text(world, sorted(them)[:MOST_NAMED], job)}"
        f"{f' and {len(them) - MOST_NAMED} more' if len(them) > MOST_NAMED else ''}: {why}"
        for why, them in list(refused.items())[:MOST_NAMED]
    ]


def _details(world: World, job: Job, now: float) -> list[str]:
    lines = []
    running = job.running
    if running is not None and running.placement is not None:
        shares = running.placement.shares
        where = ", ".join(
            f"{share.node}: {'GPU' if len(share.gpus) == 1 else 'GPUs'} {','.join(map(str, share.gpus))}"
            for share in shares
        )
        lines.append(f"attempt {running.number} holds {where}{running.placement.role.told}")
        lines += [_shared_with(job, other) for other in partners_of(world, job)]
        lines += _that_go(world, running.placement, now)
        lines += _shares(world, job, running)
    elif not job.finished:
        lines += _beside_nobody(world, job)
        lines += [_on_its_way(pilot) for pilot in with_agents(world) if not (pilot.over or pilot.nodes)]
        lines += avoided_lines(world)
    if job.spec.array_most and not job.finished:
        lines.append(_of_its_array(world, job))
    if job.progress.step is not None:
        lines.append(f"step {job.progress.step}" + (f" of {job.progress.total}" if job.progress.total else ""))
    if job.expectation is not None and job.expectation.slipped and not job.finished:
        ago = seconds_text(max(0.0, now - job.expectation.since))
        lines.append(f"its deadline slipped {ago} ago: until then it was expected to be met")
    if job.progress.saved_step is not None:
        lines.append(f"last durable checkpoint: step {job.progress.saved_step}")
    if job.suspends and not job.finished:  # then the aftermath says what for, too
        lines.append(f"suspended {count(job.suspends, 'time')}")
    if job.last.cause is not None and not job.finished:
        lines.append(f"attempt {job.last_incarnation - len(job.live)} ended: {job.last.cause}, {job.last.detail}")
    if running is not None and running.number > 1 and running.attached and running.progress is not None:
        lines.append(f"attempt {running.number} went on at step {running.progress.ready_step}")
    lines += _setback(job)
    if not job.finished and job.last.cause is not None and job.progress.saved_step is None:
        if job.spec.resumes is not None:
            lines.append("its program resumes by itself, from checkpoints of its own")
        elif has_own_handler(job):
            lines.append("hpcdl knows of no checkpoint of its program: --resumes says that it resumes by itself")
        else:
            lines.append(
                "no checkpoint yet: it started from the beginning" if running else "no checkpoint: it starts over"
            )
    if running is not None and running.state is IncarnationState.RUNNING and not can_suspend(job):
        lines.append(
            "nothing shows yet that it can checkpoint (hpcdl.attach(), --signal or --resumes): after a suspend it "
            "would start over (docs/trainer-guide.md)"
        )
    if job.failures.total:
        used = f"; {retries_used(job)} of {job.spec.retries} retries used" if job.spec.retries else ""
        row = f"; the last {job.fruitless} without a new checkpoint between" if job.fruitless > 1 else ""
        lines.append(count(job.failures.total, "failure") + used + row)
    if not job.finished and job.first_start_at is None and running is None:
        lines.append(f"has waited {seconds_text(max(0.0, now - job.submitted_at))} since its submission")
    return lines


def _setback(job: Job) -> list[str]:
    """Where an attempt went on behind what was saved, and which checkpoints were passed over."""
    lines, running = [], job.running
    damaged = () if running is None else running.damaged
    if job.setback is not None:
        which = f"attempt {job.setback.attempt} {job.setback.text}"
        lines.append(f"{which}: is its checkpoint folder the right one, is the step restored? hpcdl logs {job.id}")
        damaged = damaged or job.setback.damaged
    return [*lines, *(f"a damaged checkpoint was passed over: {each}" for each in damaged)]


def _of_its_array(world: World, job: Job) -> str:
    """How many members of its array hold GPUs, or are to, of those that may."""
    members = members_of(lambda number: None if (each := world.jobs.get(number)) is None else each.spec, job.id)
    using = sum(number in world.targets or world.jobs[number].running is not None for number in members)
    return f"of array {job.spec.array} {using} have GPUs, or are about to; at most {job.spec.array_most} may"


def _shares(world: World, job: Job, running: Incarnation) -> list[str]:
    """What the step gate lets a background do; and of a foreground, each background beside it."""
    lines = [] if running.throttle is None else [f"as a background it {running.throttle.text}"]
    for number in sorted(world.live):
        for each in world.jobs[number].live:
            if each.throttle is not None and each.throttle.foreground == job.id:
                lines.append(f"job {number}, a background beside it, {each.throttle.text}")
    return lines


def _that_go(world: World, placement: Placement, now: float) -> list[str]:
    """The job's nodes whose end is known, or that are being left."""
    lines = []
    for name in placement.nodes:
        node = world.nodes.get(name)
        if node is not None and (node.leaving or node.until is not None):
            when = "" if node.until is None else f"goes in {seconds_text(max(0.0, node.until - now))}"
            told = ("is being left" if node.leaving else "", when)
            why = f" ({node.reason})" if node.reason else ""
            lines.append(f"{name} {' and '.join(each for each in told if each)}{why}")
    return lines


def _on_its_way(pilot: Pilot) -> str:
    """A pilot that may bring the nodes which a job waits for."""
    batch_job = f"batch job {pilot.batch_id}" if pilot.batch_id else "not submitted yet"
    said = "" if pilot.job is None or not pilot.job.reason else f": {pilot.job.reason}"
    return f"pilot p{pilot.id} for {count(pilot.spec.nodes, 'node')} waits ({batch_job}){said}"


def retries_used(job: Job) -> int:
    """Retries spent on user errors; the error that found none left has spent none."""
    return min(job.failures.retries_used, job.spec.retries)


# --- excluded GPUs and nodes, in words --------------------------------------------------------------------------------

SHOWN = 4
"""So many excluded GPUs are named; the others are counted."""


def until_text(at: float, since: float) -> str:
    """`14:20`, with the date where it is more than a day after `since`."""
    return f"{datetime.fromtimestamp(at).astimezone():{'%H:%M' if at - since < 86_400 else '%Y-%m-%d %H:%M'}}"


def avoided_lines(world: World) -> list[str]:
    """`n1:0 is excluded until 14:20: Xid 79: …`, a line for each."""
    found = [_line(node, each) for node in world.nodes.values() for each in node.avoided if not each.over]
    more = len(found) - SHOWN
    return found if more <= 0 else [*found[:SHOWN], f"{more} more are excluded: hpcdl avoid lists them"]


def _line(node: Node, each: Avoided) -> str:
    name = node.name if each.index is None else f"{node.name}:{each.index}"
    return f"{name} is excluded until {until_text(each.until, each.since)}: {each.reason}"


def all_avoided(world: World) -> str:
    """Where there are GPUs, and each that could be granted is excluded: which; else ""."""
    here = [node for node in world.nodes.values() if node.connected and not node.lost and not node.leaving]
    if any(node.usable for node in here):
        return ""
    if not any(gpu.state == "ok" and node.avoids(gpu.index) for node in here for gpu in node.gpus):
        return ""
    return "; ".join(avoided_lines(world)) + " (hpcdl avoid --lift)"
