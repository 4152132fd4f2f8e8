"""LSF's adapter, for its relatives (Spectrum LSF, openlava) too: runs its commands and makes values of what they print.

Which options and forms of output this LSF has is found by trying, and remembered. Answers are parsed in `jobs.py`,
`cluster.py` and `holes.py`; `text.py` has what all commands share. An answer that is not understood is an error.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hpcdl.batch.adapter import TIMEOUT_S, Allocation, Capabilities, CommandRunner, Completed, IdleNodes, PilotScript
from hpcdl.batch.command import run, understood
from hpcdl.batch.system import BatchError, Unsupported
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, PendingBatchJob, PilotSpec
from hpcdl.lsf import environment, text
from hpcdl.lsf.cluster import (
    BHOSTS_ARGV,
    HostGpus,
    HostRow,
    LsfQueue,
    bqueues_argv,
    for_gaps,
    for_idle,
    gpus_argv,
    lshosts_argv,
    may_use,
    not_preempted,
    parse_bhosts,
    parse_bqueues,
    parse_bqueues_long,
    parse_gpus,
    parse_lshosts,
    preempting,
)
from hpcdl.lsf.environment import write_script
from hpcdl.lsf.holes import (
    BackfillWindow,
    bslots_argv,
    from_idle,
    from_windows,
    no_window,
    parse_bslots,
    slots_of,
    usual,
    whole_hosts,
)
from hpcdl.lsf.jobs import (
    CAPABLE,
    Form,
    Steady,
    bhist_argv,
    bjobs_argv,
    jobstat_argv,
    jobstat_text,
    nodes_of_jobstat,
    parse_bhist,
    parse_bjobs,
    parse_waiting,
    waiting_argv,
)
from hpcdl.lsf.text import TRIES, Calls, Pause, Which

COMMANDS = (
    "bsub", "bjobs", "bhist", "bhosts", "bqueues", "bslots", "bkill", "bstop", "bresume", "lsid", "lshosts",
    "blaunch", "jsrun", "lsrun", "jobstat",
)  # fmt: skip

QUICK_S = 10.0
"""Seconds for what an allocation can do without."""

GPUS_KEPT_S = 600.0
"""Seconds for which the hosts' GPUs are taken to stay what they were."""


@dataclass(frozen=True, slots=True)
class LsfSettings:
    """What differs from site to site. `submit_by`: bsub reads its script from stdin at most sites, from a file at some.
    `nodes_by`: whether nodes are asked for in slots (`-n`) or as such (`-nnodes`). `select`: a resource that only
    hosts which compute have (`CN`), "" where all do. `queues`: those that pilots may use, () for
    none; then any shows what idles. `without_preemption`: they may use those that others do not preempt.
    """

    submit_by: str = "auto"
    nodes_by: str = "auto"
    launcher: str = "auto"
    select: str = ""
    queues: tuple[str, ...] = ()
    without_preemption: bool = False


class Lsf:
    """See BatchAdapter. `now`: seconds since the epoch, for moments that LSF prints without a year, or as a length.
    `environ`: of this process, which may be in an LSF job itself.
    """

    kind = "lsf"

    def __init__(
        self,
        run: CommandRunner = run,
        *,
        now: Callable[[], float],
        ways: LsfSettings = LsfSettings(),
        which: Which = shutil.which,
        pause: Pause = time.sleep,
        host_name: Callable[[], str] = socket.gethostname,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._calls = Calls(run, which, pause)
        self._now = now
        self._ways = ways
        self._host_name = host_name
        self._environ = environ
        self._form: Form | None = None
        self._bhosts = 0
        self._idle_by = ""  # the command that has said what idles
        self._cpus: dict[str, int] = {}  # by host; one that lshosts does not list this time has what it had
        self._no_bslots = not self._calls.has("bslots")
        self._without: frozenset[str] = frozenset()
        self._by_file = ways.submit_by == "file"
        self._through_launch_node = False
        self._steady = Steady()
        self._full: dict[str, str] = {}
        self._seen: tuple[Sequence[HostRow], Mapping[str, int], Sequence[LsfQueue]] = ((), {}, ())
        self._gpus: tuple[float, dict[str, HostGpus]] | None = None

    def capabilities(self) -> Capabilities:
        """What this LSF is and can do; `limits` has the kinds of its queues, and what jobstat says where it is."""
        version, cluster = text.parse_lsid(self._output(["lsid"])) if self._calls.has("lsid") else ("", "")
        self._listed(())
        commands = {name: self._calls.has(name) for name in COMMANDS}
        found = self._queues()
        rows = self._rows()
        limits = {f"queue {queue.name}": queue.kind for queue in found if queue.kind}
        if cluster:
            limits["cluster"] = cluster
        if commands["jobstat"]:
            try:
                limits["jobstat"] = jobstat_text(self._output(jobstat_argv()))
            except (BatchError, ValueError) as error:
                limits["jobstat"] = str(error)
        if not self._no_bslots:
            self._windows()
        preempted = [f"{queue.name}: {queue.kind}" for queue in found if queue.preemptable]
        return Capabilities(
            kind=self.kind,
            version=version,
            json=self._form is Form.JSON,
            preemption="; ".join(preempted),
            limits=limits,
            queues=tuple(queue.name for queue in found),
            commands=commands,
            missing=self._missing(found, rows),
            not_preempted={queue.name: not_preempted(queue, found) for queue in found},
        )

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """From the environment; start and end from bjobs, None where it does not say them at once."""
        told = environment.lsf_allocation(environ, lambda path: Path(path).read_text(encoding="utf-8"))
        if told is None:
            return None
        self._through_launch_node = told.launch or "CSM_ALLOCATION_ID" in environ
        self._full.update((text.short(host), host) for host in told.hosts)
        nodes = tuple(text.short(host) for host in told.hosts)
        job: BatchJob | None = None
        gpus: dict[str, HostGpus] = {}
        try:
            job = self._listed((told.id,), QUICK_S)[0].get(told.id)
            gpus = self._gpus_of(())
        except BatchError:
            pass  # LSF is away, the nodes are ours all the same
        cards = {gpus[node].count if node in gpus else 0 for node in nodes} if gpus else set()
        return Allocation(
            kind=self.kind,
            id=told.id,
            nodes=nodes,
            gpus=cards.pop() if len(cards) == 1 else None,
            until=job.until if job else None,
            started_at=job.started_at if job else None,
            queue=told.queue or (job.queue if job else ""),
            here=environment.here(told.hosts, (self._host_name(), environ.get("HOSTNAME", ""))),
        )

    def holes(self, now: float, own: Collection[str]) -> tuple[Hole, ...]:
        """Backfill windows where bslots has them, else hosts that idle, without an end. What `own` pilots hold or
        wait for is in neither.
        """
        rows = self._rows()
        slots = self._slots(rows)
        gpus = self._gpus_of(rows)
        found = self._queues()
        self._seen = (rows, slots, found)
        windows = None if self._no_bslots else self._windows()
        allowed = self._allowed(found)
        if windows is None:
            queue = for_idle(found, [row.name for row in rows], allowed)
            holes = from_idle(rows, slots, gpus, queue)
        else:
            queue = for_gaps(found, allowed)
            holes = from_windows(windows, slots, gpus, queue, now)
        why = not_preempted(queue, found)
        return tuple(replace(hole, preemptable=not why, why_not=why) for hole in holes)

    def idle_nodes(self) -> IdleNodes:
        """See BatchAdapter. By bhosts; where that has never answered by bslots -l, and jobstat for the number of nodes.

        The two do not show the same hosts, so what has answered once is asked for good.
        """
        if self._idle_by == "bslots":
            return self._idle_by_windows()
        try:
            rows = self._rows()
        except BatchError as error:
            if self._idle_by == "bhosts":
                raise
            return self._idle_by_windows(error)
        slots = self._slots(rows)
        if not slots:
            raise BatchError("bhosts: it shows no host that computes, or not how many slots one has", again=True)
        self._idle_by = "bhosts"
        return IdleNodes(frozenset(text.short(row.name) for row in rows if row.unused) & slots.keys(), len(slots))

    def _idle_by_windows(self, refusal: BatchError | None = None) -> IdleNodes:
        """What idles by bslots -l. `refusal`: that of bhosts, which is raised where this is not answered either."""
        try:
            windows = self._windows()
        except BatchError as error:
            raise refusal or error from None
        if windows is None:
            raise refusal or BatchError("bslots: it is refused now", again=True)
        names = whole_hosts(windows)
        if names is None:
            said = "" if refusal is None else f"{refusal}; "
            raise BatchError(f"{said}bslots -l names no hosts", away=refusal is not None and refusal.away)
        self._idle_by = "bslots"
        return IdleNodes(names, self._nodes_in_all())

    def _nodes_in_all(self) -> int | None:
        if not self._calls.has("jobstat"):
            return None
        try:
            return nodes_of_jobstat(self._output(jobstat_argv()))
        except (BatchError, ValueError):
            return None

    def _allowed(self, found: Sequence[LsfQueue]) -> tuple[str, ...]:
        """The queues that pilots may use; of these only those that others preempt, where there are any."""
        named = [queue for queue in found if queue.name in self._ways.queues]
        guests = [queue.name for queue in named if preempting(queue, found)]
        return self._ways.queues if self._ways.without_preemption or not guests else tuple(guests)

    def waiting(self, own: Collection[str]) -> tuple[PendingBatchJob, ...]:
        """See BatchAdapter. One more command; where bjobs does not say how many slots are asked for, it is one node."""
        rows, slots, found = self._seen
        capable = self._form in CAPABLE
        done = self._calls.ask(waiting_argv(capable))
        listed = understood("bjobs", partial(parse_waiting, capable, done.out))
        if not listed and not text.not_found(done):
            raise BatchError(f"bjobs: {text.words(done)}")
        per_node, names = usual(slots.values()) or 1, [row.name for row in rows]
        waits = []
        for job in listed:
            queue = next((each for each in found if each.name == job.queue), None)
            if queue is None or not job.for_hosts or job.id in own or job.is_pilot:
                continue
            hosts_ = [text.short(name) for name in names if may_use(queue, name, names)]
            nodes = tuple(name for name in hosts_ if name in slots)
            ended = frozenset(each.name for each in found if queue.name in preempting(each, found))
            waits.append(PendingBatchJob(job.id, max(1, -(-job.slots // per_node)), nodes, queue.name, ended))
        return tuple(waits)

    def submit(self, spec: PilotSpec, script: PilotScript) -> str:
        """See BatchAdapter. Tried again where LSF asks to wait; where it prints nothing, our mark is looked for."""
        for tried in range(1, TRIES + 1):
            argv = environment.outside(text.bsub_argv(spec, script, self._asking(spec)), self._environ)
            body = text.script_of(script.argv)
            if self._by_file:
                done = self._calls.once([*argv, str(write_script(script, body))])
            else:
                done = self._calls.once(argv, stdin=body)
            if (job := text.parse_bsub(done)) is not None:
                return job
            if not text.answered(done) and not text.transient(done) and done.code == 0:
                return self._lost_reply(script.mark)
            refused = text.refused_options(done) - self._without if text.refused(done) else frozenset()
            if text.wants_a_file(done) and not self._by_file and self._ways.submit_by == "auto":
                self._by_file = True
            elif refused:
                self._without |= refused
            elif not text.transient(done):
                raise BatchError(f"bsub: {text.words(done)}", again=text.taken_later(done))
            elif tried < TRIES:
                self._calls.wait(tried)
        raise BatchError(f"bsub: {text.words(done)}", away=True)

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """See BatchAdapter. Where bjobs prints nothing at all nothing is known, which is not the same as gone."""
        if not ids:
            return {}
        listed, told = self._listed(ids)
        lost = (BatchState.MISSING, "") if told else (BatchState.UNKNOWN, "bjobs printed nothing")
        return {each: listed.get(each) or BatchJob(each, lost[0], reason=lost[1]) for each in ids}

    def confirm(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """See BatchAdapter. By bhist, and bjobs for this one alone: only where both do not know it, it is GONE.

        bjobs forgets a job an hour after its end, bhist one whose log was put away. Without bhist it is bjobs alone.
        """
        found = {}
        for each in ids:
            try:
                found[each] = self._alone(each)
            except BatchError as error:
                if error.away:
                    raise  # it would hang for the others as well
                found[each] = BatchJob(each, BatchState.UNKNOWN, reason=str(error))
        return found

    def _alone(self, batch_id: str) -> BatchJob:
        if self._form is None:
            self._listed(())
        done = self._calls.ask(bjobs_argv(self._form or Form.LONG, [batch_id]))
        form = self._form or Form.LONG
        told = (understood("bjobs", partial(parse_bjobs, form, done.out, self._now())) or {}).get(batch_id)
        listed = None if told is None else told.job
        gone = BatchJob(batch_id, BatchState.GONE)
        if listed is None and f"Job <{batch_id}> is not found" not in done.out + done.err:
            raise BatchError(f"bjobs says nothing of job {batch_id}: {text.words(done)}")
        if not self._calls.has("bhist"):
            return listed or gone
        done = self._calls.ask(bhist_argv([batch_id]))
        history = parse_bhist(done.out, self._now()).get(batch_id)
        if history is None and not text.not_found(done):
            raise BatchError(f"bhist says nothing of job {batch_id}: {text.words(done)}")
        if history is None or history.state is BatchState.UNKNOWN:
            return listed or (gone if history is None else history)
        return history

    def marked(self, prefix: str) -> tuple[BatchJob, ...]:
        """See BatchAdapter; jobs that ended a short while ago are among them."""
        listed, told = self._listed(())
        if not told:
            raise BatchError("bjobs printed nothing: nobody knows whether the pilot was submitted", away=True)
        return tuple(job for job in listed.values() if job.mark.startswith(prefix))

    def cancel(self, ids: Collection[str]) -> None:
        """See BatchAdapter. LSF may end a job of several hosts by SIGKILL at once: send a signal before, and wait."""
        if ids:
            self._control(text.bkill_argv(ids))

    def signal(self, batch_id: str, name: str) -> None:
        """See BatchAdapter. `name`: with or without SIG; not every relative of LSF knows URG."""
        if self._control(text.bkill_argv([batch_id], name)):
            raise BatchError(f"bkill -s {name}: job {batch_id} has ended already")

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
        """By blaunch, or by jsrun where jobs are started from a launch node; without both by lsrun. By ssh only where
        the site's file says so. See `jsrun_argv` about its node."""
        by = self._ways.launcher
        if by == "auto":
            jsrun = self._calls.has("jsrun") and (self._through_launch_node or not self._calls.has("blaunch"))
            by = "jsrun" if jsrun else next((name for name in ("blaunch", "lsrun") if self._calls.has(name)), "none")
        if node not in allocation.nodes:
            raise BatchError(f"{node} is no node of LSF job {allocation.id}")
        if by == "jsrun":
            return tuple(environment.jsrun_argv(argv, allocation.gpus))
        host = self._full.get(node, node)
        if by == "blaunch" and self._calls.has("blaunch"):
            return tuple(environment.blaunch_argv(host, argv))
        if node == allocation.here:
            return tuple(argv)
        if by == "ssh":
            return tuple(environment.ssh_argv(host, argv))
        if by == "lsrun" and self._calls.has("lsrun"):
            return ("lsrun", "-m", host, *argv)
        missing = "neither blaunch, jsrun nor lsrun is" if by == "none" else f"{by} is not"
        raise Unsupported(f"{missing} on PATH, so no agent can be started there (launcher: ssh in the site's file)")

    def topology(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Always {}: LSF knows groups of hosts, not switches."""
        return {}

    def _output(self, argv: Sequence[str]) -> str:
        """What a command printed. Raises BatchError where it failed, or printed nothing."""
        done = self._calls.ask(argv)
        if done.code != 0 or not done.out.strip():
            raise BatchError(f"{argv[0]}: {text.words(done)}", again=done.code == 0)
        return done.out

    def _listed(self, ids: Collection[str], timeout_s: float = TIMEOUT_S) -> tuple[dict[str, BatchJob], bool]:
        """The jobs that bjobs lists, all of this user's for no ids, and whether it said anything at all."""
        for form in sorted(Form, key=lambda each: each is not self._form):
            done = self._calls.ask(bjobs_argv(form, ids), timeout_s)
            jobs = understood("bjobs", partial(parse_bjobs, form, done.out, self._now()))
            if jobs is not None or text.not_found(done):
                self._form = form
                return {job: self._steady.job(told) for job, told in (jobs or {}).items()}, True
            if not text.answered(done):
                return {}, False
            if done.code != 0 and not text.refused(done):
                raise BatchError(f"bjobs: {text.words(done)}")
        self._form = None
        raise Unsupported(f"bjobs answers in none of the forms that hpcdl knows: {text.words(done)}")

    def _control(self, argv: Sequence[str]) -> bool:
        """Whether some job was gone already. Raises BatchError with LSF's words."""
        wrong, gone = text.complaints(self._calls.ask(argv))
        if wrong:
            raise BatchError(f"{argv[0]}: {'; '.join(wrong)}")
        return gone

    def _lost_reply(self, mark: str) -> str:
        """The id of a job whose submission was answered by nothing."""
        found = [job for job in self.marked(mark) if job.mark == mark]
        if not found:
            raise BatchError("bsub printed nothing, and bjobs does not list the pilot", away=True)
        over = (BatchState.ENDED, BatchState.ENDING)
        return next((job.id for job in found if job.state not in over), found[0].id)

    def _asking(self, spec: PilotSpec) -> text.Asking:
        if self._form is None:
            self._listed(())
        by_nodes = self._ways.nodes_by == "nodes" or (self._ways.nodes_by == "auto" and self._calls.has("jsrun"))
        asking = text.Asking(None, by_nodes, self._form in CAPABLE, self._ways.select, without=self._without)
        if by_nodes and asking.knows("nnodes") and not spec.on:
            return asking
        rows = self._rows()
        slots, gpus = self._slots(rows), self._gpus_of(rows)
        some = [node for node in spec.on if node in slots] or list(slots)
        cards = {gpus[node].count for node in some if node in gpus}
        wanted = tuple(self._full.get(node, node) for node in spec.on)
        return replace(
            asking,
            slots=usual(slots[node] for node in some),
            hosts=wanted,
            gpus=cards.pop() if len(cards) == 1 else None,
        )

    def _rows(self) -> tuple[HostRow, ...]:
        done = self._calls.ask(BHOSTS_ARGV[self._bhosts])
        while text.refused(done) and self._bhosts + 1 < len(BHOSTS_ARGV):
            self._bhosts += 1
            done = self._calls.ask(BHOSTS_ARGV[self._bhosts])
        rows = understood("bhosts", partial(parse_bhosts, done.out), again=True)
        if not rows:
            raise BatchError(f"bhosts: {text.words(done)}", again=done.code == 0)
        self._full.update((text.short(row.name), row.name) for row in rows)
        return rows

    def _slots(self, rows: Sequence[HostRow]) -> dict[str, int]:
        if any(row.most is None for row in rows) and self._calls.has("lshosts"):
            self._cpus |= parse_lshosts(self._calls.ask(lshosts_argv()).out)
        return slots_of(rows, self._cpus)

    def _gpus_of(self, rows: Sequence[HostRow]) -> dict[str, HostGpus]:
        """GPUs by host, {} where LSF reports none at all. `rows`: known hosts, which have none if not listed."""
        now = self._now()
        if self._gpus is None or not 0 <= now - self._gpus[0] < GPUS_KEPT_S:
            told: dict[str, HostGpus] = {}
            known = False
            for argv in gpus_argv():
                if self._calls.has(argv[0]) and not told:
                    done = self._calls.ask(argv, QUICK_S)
                    told = {} if text.refused(done) else parse_gpus(done.out)
                    known = known or done.code != 0 or "HOST_NAME" in done.out.upper()
            if known:  # garbage is asked for again
                self._gpus = (now, told)
        else:
            told = self._gpus[1]
        return {**{text.short(row.name): HostGpus(0) for row in rows}, **told} if told else {}

    def _queues(self) -> tuple[LsfQueue, ...]:
        done = self._calls.ask(bqueues_argv())
        found = understood("bqueues", partial(parse_bqueues_long, done.out), again=True)
        if not found:
            done = self._calls.ask(bqueues_argv(long=False))
            found = parse_bqueues(done.out)
        if not found:
            raise BatchError(f"bqueues: {text.words(done)}", again=done.code == 0)
        return found

    def _windows(self) -> tuple[BackfillWindow, ...] | None:
        """Backfill windows, with hosts where -l lists them; None where bslots is refused, which is remembered."""
        said: Completed | None = None
        for long in (True, False):
            done = self._calls.ask(bslots_argv(long=long, select=self._ways.select))
            if no_window(done):
                return ()
            try:
                if windows := parse_bslots(done.out):
                    return windows
            except ValueError as error:
                if not long:
                    raise BatchError(f"bslots: {error}") from None
            said = done
            if not text.answered(done):
                break
        assert said is not None
        if text.refused(said):
            self._no_bslots = True
            return None
        raise BatchError(f"bslots: {text.words(said)}", away=not text.answered(said))

    def _missing(self, queues: Sequence[LsfQueue], rows: Sequence[HostRow]) -> tuple[str, ...]:
        """What this LSF lacks, and what that costs us, a line each."""
        form, has = self._form, self._calls.has
        lines = []
        if form is Form.WIDE:
            lines.append(
                "bjobs -o, -UF and -l are refused: bjobs -w tells states and hosts, but no start, no end and no "
                "reason, so a requeued pilot looks like its first run"
            )
        elif form in (Form.UF, Form.LONG):
            lines.append(f"bjobs -o and -json are refused: states are read from bjobs {form}, a block for each job")
        elif form is Form.FEW:
            lines.append("bjobs -o knows few fields: why a job waits or ended is not reported")
        elif form is Form.FIELDS:
            lines.append("bjobs -json is refused: fields are asked for with -o, which costs nothing")
        if form is not None and form not in CAPABLE:
            lines.append("bsub -Jd is not used: a pilot is known again by its job name, which is its mark")
            lines.append(
                "bsub -wa and -wt are not used: the first word of the run limit is SIGUSR2, when it is reached; "
                "pilots leave by the walltime that they know"
            )
            lines.append("bsub -gpu and -rn are not used: pilots take whole nodes by slots, and may be requeued")
        if self._no_bslots:
            lines.append(
                "no bslots: backfill holes are the hosts that idle now, until an unknown time; keep pilots short"
            )
        elif not any(queue.backfill for queue in queues):
            lines.append("no queue has BACKFILL: bslots shows no window at all, and there are no backfill holes")
        if not has("bhist"):
            lines.append("no bhist: how a pilot ended that bjobs has forgotten stays unknown")
        if not any(map(has, ("blaunch", "jsrun", "lsrun"))) and self._ways.launcher != "ssh":
            lines.append(
                "neither blaunch, jsrun nor lsrun: an agent can only be started on an allocation's first node; "
                "launcher: ssh in the site's file has ssh start the others, where the site allows that"
            )
        if not self._gpus_of(rows):
            lines.append(
                "lshosts -gpu and bhosts -gpu tell of no GPUs: a backfill hole's are known once agents run there"
            )
        return tuple(lines)
