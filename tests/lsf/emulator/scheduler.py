"""The scheduler of an emulated cluster: `python -m tests.lsf.emulator.scheduler HOME`.

It says `ready` on its stdout. It ends when its stdin ends, and all jobs with it.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from tests.lsf.emulator import environment
from tests.lsf.emulator.planning import FOREVER, Plan, possible, reserved, victims
from tests.lsf.emulator.records import UNFINISHED, Config, Job, Queue, State
from tests.lsf.emulator.resident import Resident
from tests.lsf.emulator.store import Store

TICK_S = 0.5
REASONS = {
    "TERM_OWNER": "job killed by owner",
    "TERM_FORCE_OWNER": "job killed by owner without time for cleanup",
    "TERM_RUNLIMIT": "job killed after reaching LSF run time limit",
    "TERM_PREEMPT": "job killed after preemption",
    "TERM_REQUEUE_OWNER": "job killed and requeued by owner",
    "TERM_EXTERNAL_SIGNAL": "job killed by a signal external to LSF",
}


class Scheduler:
    """Its own: the residents by (job key). Everything else is in the state file."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.config: Config = store.config()
        self.residents: dict[str, Resident] = {}
        self.exits: dict[str, int] = {}
        self.pids: dict[str, int] = {}

    def run(self) -> None:
        wake = os.open(self.store.path("wake"), os.O_RDWR | os.O_NONBLOCK)
        os.write(1, b"ready\n")
        timeout = 0.0
        while True:
            answers = {resident.answers: key for key, resident in self.residents.items()}
            ready, _, _ = select.select([0, wake, *answers], [], [], timeout)
            if 0 in ready and not os.read(0, 4096):
                break
            if wake in ready:
                with suppress(BlockingIOError):
                    os.read(wake, 65536)
            for descriptor in ready:
                if (key := answers.get(descriptor)) is not None:
                    self._hear(key)
            with self.store.change(wake=False) as state:
                timeout = self._turn(state)
        for resident in self.residents.values():
            resident.close()

    def _hear(self, key: str) -> None:
        lines = self.residents[key].lines()
        if lines is None:
            self.residents.pop(key).close()
            self.exits.setdefault(key, signal.SIGKILL)  # the resident itself was killed
            return
        for line in lines:
            what, value = line.split()
            if what == "started":
                self.pids[key] = int(value)
            else:
                self.residents.pop(key).close()
                self.exits[key] = int(value)

    def _turn(self, state: State) -> float:
        """Everything that is due; seconds until the next look."""
        now = time.time()
        self.config = self.store.config()
        for job in state.jobs:
            if (pid := self.pids.pop(job.key, 0)) and not job.pid:
                job.pid = pid
                job.note(now, f"Starting (Pid {pid})")
                job.note(
                    now,
                    f"Running with execution home <{os.path.expanduser('~')}>, Execution CWD <{job.cwd}>,"
                    f" Execution Pid <{pid}>",
                )
            if job.key in self.exits:
                self._exited(job, self.exits.pop(job.key), now)
            for request in job.requests:
                self._request(job, request, now)
            job.requests = ()
            self._clocks(job, now)
        self._dispatch(state, now)
        kept = [job for job in state.jobs if job.status in UNFINISHED or now - job.ended < 100 * self.config.clean_s]
        state.jobs = tuple(kept)
        return self._next(state, now)

    def _next(self, state: State, now: float) -> float:
        times = [now + TICK_S]
        for job in state.jobs:
            if job.stages:
                times.append(job.next_stage)
            if job.status == "RUN" and job.limit_s:
                for at in (job.limit_s, job.limit_s - job.warn_s, job.limit_s + self.config.limit_kill_s):
                    if (due := now + at - job.run_s(now)) > now:
                        times.append(due)
            if job.status == "PEND" and job.eligible > now:
                times.append(job.eligible)
        return max(0.005, min(times) - now)

    # --- signals

    def _signal(self, job: Job, name: str) -> None:
        if (resident := self.residents.get(job.key)) is not None:
            resident.signal(signal.Signals[f"SIG{name}"])

    def _request(self, job: Job, request: str, now: float) -> None:
        what, _, value = request.partition(" ")
        if what == "signal":
            job.note(now, f"Signal <{value}> requested by user or administrator <{job.user}>")
            if job.status == "PEND":
                return
            self._signal(job, value)
            if value in ("STOP", "TSTP"):
                self._request(job, "stop", now)
            elif value == "CONT" and job.status != "RUN":
                self._request(job, "resume", now)
        elif what == "kill":
            job.note(now, f"Signal <KILL> requested by user or administrator <{job.user}>")
            self._end(job, "TERM_OWNER", now)
        elif what == "remove":
            self._signal(job, "KILL")
            job.ending, job.why, job.stages = True, "TERM_FORCE_OWNER", ()
            self._over(job, signal.SIGKILL, now)
        elif what == "requeue" and job.status != "PEND":
            job.note(now, f"Signal <REQUEUE_PEND> requested by user or administrator <{job.user}>")
            job.again = True
            self._end(job, "TERM_REQUEUE_OWNER", now)
        elif what == "stop":
            if job.status == "PEND":
                job.turn(now, "PSUSP")
            elif job.status in ("RUN", "SSUSP"):
                job.note(now, f"Signal <STOP> requested by user or administrator <{job.user}>")
                self._signal(job, "TSTP" if job.parallel else "STOP")
                job.turn(now, "USUSP")
                job.suspend_reason = "The job was suspended by user"
                job.note(now, "Suspended: Job was suspended by the user")
        elif what == "resume":
            if job.status == "PSUSP":
                job.turn(now, "PEND")
            elif job.status == "USUSP":
                job.note(now, f"Signal <CONT> requested by user or administrator <{job.user}>")
                job.turn(now, "SSUSP")
                job.suspend_reason = "Waiting for re-scheduling after being resumed by user"

    def _end(self, job: Job, why: str, now: float) -> None:
        """Begins a terminate sequence; of a parallel job it is only SIGKILL, unless the cluster is told otherwise."""
        if job.status in ("PEND", "PSUSP"):
            job.ending, job.why = True, why
            self._over(job, None, now)
            return
        if job.ending:
            return
        job.ending, job.why = True, why
        gap = self.config.terminate_s
        if job.parallel and not self.config.sequential_signal and not self.config.openlava:
            job.stages = (("KILL", gap),)
        else:
            job.stages = (("INT", gap), ("TERM", gap), ("KILL", gap))
        job.next_stage = now

    def _clocks(self, job: Job, now: float) -> None:
        while job.stages and now >= job.next_stage and job.key in self.residents:
            (name, gap), *left = job.stages
            self._signal(job, name)
            if job.status != "RUN":
                self._signal(job, "CONT")
            job.stages, job.next_stage = tuple(left), now + gap
        if job.status != "RUN" or job.ending or not job.limit_s:
            return
        run_s = job.run_s(now)
        if job.warn and not job.warned and run_s >= job.limit_s - job.warn_s:
            job.warned = True
            job.note(now, f"Signal <{job.warn}> requested by user or administrator <{job.user}>")
            self._signal(job, job.warn)
        if not job.limit_hit and run_s >= job.limit_s:
            job.limit_hit, job.why = now, "TERM_RUNLIMIT"
            self._signal(job, "USR2")
        elif job.limit_hit and now - job.limit_hit >= self.config.limit_kill_s:
            self._signal(job, "KILL")

    # --- ends

    def _exited(self, job: Job, status: int, now: float) -> None:
        if job.status in ("DONE", "EXIT"):
            return
        self._over(job, status, now)

    def _over(self, job: Job, status: int | None, now: float) -> None:
        """The run is over; `status`: None where there was none."""
        code = None
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
        queue = self.config.queue(job.queue)
        values = set(job.requeue_values) | (set(queue.requeue_values) if queue is not None else set())
        if job.again or (not job.ending and code is not None and code in values):
            told = f";(exit code {code})" if not job.again else ""
            job.turn(now, "PEND")
            job.note(now, f"Pending: Requeued job is waiting for rescheduling{told}")
            self._clear(job)
            job.eligible = now + self.config.hold_s
            job.pend_reason = "Requeued the job for the next run"
            return
        job.code, job.ended = code, now
        if code == 0 and not job.why:
            job.turn(now, "DONE")
            job.note(now, "Done successfully. The CPU time used is 0.0 seconds")
            job.note(now, "Post job process done successfully")
        else:
            job.turn(now, "EXIT")
            if not job.why and code is not None and code > 128 and not job.limit_hit:
                job.why = "TERM_EXTERNAL_SIGNAL" if code - 128 in (signal.SIGKILL, signal.SIGTERM) else ""
            if code is not None:
                by = (
                    f" by signal {code - 128}" if code > 128 and not self.config.openlava else f" with exit code {code}"
                )
                by = f" with exit code {code}" if job.limit_hit else by
                job.note(now, f"Exited{by}. The CPU time used is 0.0 seconds")
            else:
                job.note(now, "Exited")
            job.reason = f"{job.why}: {REASONS[job.why]}" if job.why else ""
            job.note(now, f"Completed <exit>{'; ' + job.reason if job.reason else ''}")
        job.stages, job.ending = (), False
        if job.started:
            environment.write_report(self.config, job)

    @staticmethod
    def _clear(job: Job) -> None:
        job.hosts, job.gpu_ids, job.pid, job.started, job.ran_s = (), (), 0, 0.0, 0.0
        job.stages, job.ending, job.why, job.again = (), False, "", False
        job.warned, job.limit_hit, job.limit_s, job.suspend_reason = False, 0.0, 0.0, ""

    # --- places

    def _dispatch(self, state: State, now: float) -> None:
        plan = Plan(self.config, state, now)
        state.reservations = ()
        order = {queue.name: queue.priority for queue in self.config.queues}
        waiting = [job for job in state.jobs if job.status in ("PEND", "SSUSP") and not job.ending]
        waiting.sort(key=lambda job: (-order[job.queue], job.status == "PEND", job.id, job.index))
        for job in waiting:
            if job.status == "SSUSP":
                self._resume(plan, job, now)
            elif (reason := self._not_yet(state, job, now)) is not None:
                job.pend_reason = reason
            else:
                self._place(state, plan, job, now)

    def _not_yet(self, state: State, job: Job, now: float) -> str | None:
        """Why a job is not even considered."""
        queue = self.config.queue(job.queue)
        if queue is None or not queue.active:
            return "The queue is inactivated by the administrator;"
        if job.eligible > now:
            return "Requeued the job for the next run;"
        if job.dependency and not met(job.dependency, state.jobs):
            return "Job dependency condition not satisfied;"
        if queue.user_jobs:
            mine = [
                j for j in state.jobs if j.queue == job.queue and j.user == job.user and j.status in ("RUN", "USUSP")
            ]
            if len(mine) >= queue.user_jobs:
                return "The user has reached the per-user job slot limit of the queue;"
        return None

    def _resume(self, plan: Plan, job: Job, now: float) -> None:
        for name, slots in job.hosts:
            host = self.config.host(name)
            if host is None or name == self.config.launch_node:
                continue
            if plan.free(host, now, now + 1e-6, keep_off=False)[0] < slots:
                return
        job.suspend_reason = ""
        job.turn(now, "RUN")
        job.note(now, "Running")
        plan.add(job, job.hosts, 0.0, job.end_at(now), planned=False)
        self._signal(job, "CONT")

    def _place(self, state: State, plan: Plan, job: Job, now: float) -> None:
        queue = self.config.queue(job.queue)
        assert queue is not None
        limit_s = job.asked_s or queue.limit_s
        if queue.interruptible_s:
            limit_s = min(plan.window(job), queue.limit_s or FOREVER)
            if limit_s < queue.interruptible_s:
                job.pend_reason = "No backfill window is long enough;"
                return
            limit_s = 0.0 if limit_s == FOREVER else limit_s
        duration = limit_s or FOREVER
        hosts: Sequence[tuple[str, int]] | None
        hosts = plan.place(job, now, now + duration, keep_off=not queue.backfill)
        if hosts is None and queue.preempts:
            hosts = self._preempt(state, plan, job, queue, duration)
        if hosts is not None:
            self._start(state, plan, job, hosts, limit_s, now)
            return
        if not possible(self.config, job):
            job.pend_reason = "There are no suitable hosts for the job;"
            return
        count = len(plan.compute_hosts())
        job.pend_reason = f"Not enough job slot(s): {count} hosts;"
        if queue.reserve and not queue.interruptible_s and (found := plan.earliest(job, duration)) is not None:
            at, where = found
            plan.add(job, where, at, at + duration, planned=True)
            state.reservations = (*state.reservations, reserved(job, at, where))

    def _preempt(
        self, state: State, plan: Plan, job: Job, queue: Queue, duration: float
    ) -> Sequence[tuple[str, int]] | None:
        """Makes place; the hosts where that is free at once."""
        chosen = victims(self.config, state, plan, job, queue, duration)
        if chosen is None:
            return None
        at_once = True
        for each in chosen:
            theirs = self.config.queue(each.queue)
            assert theirs is not None
            if each.ending:
                at_once = False
            elif theirs.action == "suspend":
                each.note(plan.now, f"Suspended: Preempted by job <{job.key}>")
                self._signal(each, "TSTP" if each.parallel else "STOP")
                each.turn(plan.now, "SSUSP")
                each.suspend_reason = f"Preempted by job <{job.key}>"
            else:
                at_once = False
                each.again = not each.no_rerun
                each.note(plan.now, f"Signal <{'REQUEUE_PEND' if each.again else 'KILL'}> requested: preempted")
                self._end(each, "TERM_PREEMPT", plan.now)
        if not at_once:
            return None
        others = [use for use in plan.uses if use.planned]
        fresh = Plan(self.config, state, plan.now)
        plan.uses = fresh.uses + others
        return plan.place(job, plan.now, plan.now + duration, keep_off=False)

    def _start(
        self, state: State, plan: Plan, job: Job, hosts: Sequence[tuple[str, int]], limit_s: float, now: float
    ) -> None:
        job.hosts = tuple(hosts)
        job.gpu_ids = environment.gpus_for(self.config, state, job)
        job.limit_s = limit_s
        job.turn(now, "RUN")
        job.started, job.ended, job.ran_s, job.code, job.reason = now, 0.0, 0.0, None, ""
        job.runs += 1
        job.pend_reason = ""
        plan.add(job, hosts, 0.0, job.end_at(now), planned=False)
        job.note(now, environment.dispatched(self.config, job))
        self.residents[job.key] = Resident(environment.prepared(self.store, self.config, job))


def met(condition: str, jobs: Sequence[Job]) -> bool:
    """Whether a dependency holds; `&&` and `||` of done(), ended(), exit(), started() and bare ids or names."""
    for either in condition.split("||"):
        if all(_term(term.strip(" ()") + ")", jobs) for term in either.split("&&")):
            return True
    return False


def _term(term: str, jobs: Sequence[Job]) -> bool:
    what, _, rest = term.rpartition("(")
    name = rest.rstrip(")").strip(" \"'")
    found = [job for job in jobs if name in (str(job.id), job.key, job.name, job.array)]
    wanted = {"": ("DONE",), "done": ("DONE",), "ended": ("DONE", "EXIT"), "exit": ("EXIT",)}
    started = ("RUN", "USUSP", "SSUSP", "DONE", "EXIT")
    return bool(found) and all(job.status in wanted.get(what.strip(), started) for job in found)


def main(home: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Scheduler(Store(home)).run()


if __name__ == "__main__":
    main(sys.argv[1])
