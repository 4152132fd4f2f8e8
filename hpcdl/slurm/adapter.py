"""Slurm's adapter: runs its commands and turns what they print into the values of `hpcdl.batch.adapter`.

Each answer is parsed in `jobs.py`, `nodes.py` and `cluster.py`; what is submitted, cancelled and launched is in
`submit.py`. An answer that is not understood to its last line is an error, never an empty answer.
"""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from hpcdl.batch.adapter import Allocation, Capabilities, CommandRunner, IdleNodes, PilotScript
from hpcdl.batch.command import run, understood
from hpcdl.batch.holes import IdleNode, OpenQueue, PlannedUse, find_holes, planned_job
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, PendingBatchJob, PilotSpec
from hpcdl.slurm import cluster, jobs, nodes, submit
from hpcdl.slurm.environment import allocation_of
from hpcdl.slurm.system import SYSTEM
from hpcdl.slurm.text import TIMES, checked

COMMANDS = ("sinfo", "squeue", "scontrol", "sbatch", "srun", "scancel", "sacct")
_LIMITS = ("KillWait", "MinJobAge", "MaxJobCount", "MaxArraySize", "MessageTimeout", "AccountingStorageEnforce")
_SOON_S = 12.0
_JSON_OF_JOBS = (23, 2)

T = TypeVar("T")


class Slurm:
    """See `BatchAdapter`. `options`: what the site wants on each submission; reservation and licences limit holes.

    Remembered for as long as it lives: Slurm's version, and that JSON or the accounting are not there.
    """

    kind = "slurm"

    def __init__(
        self, run: CommandRunner = run, options: Sequence[str] = (), environ: Mapping[str, str] = os.environ
    ) -> None:
        self._run = run
        self._wanted = cluster.pilot_constraints(options)
        self._stale = SYSTEM.inherited(environ)
        self._version: tuple[int, ...] | None = None
        self._json = True
        self._grouped = True
        self._accounting = True
        self._by_tier = False
        self._seen: tuple[Sequence[cluster.Partition], Sequence[jobs.PlannedJob]] = ((), ())

    def capabilities(self) -> Capabilities:
        """See `BatchAdapter`."""
        here = {name: shutil.which(name) is not None for name in COMMANDS}
        version = cluster.parse_version(self._ask(["sinfo", "--version"]))
        config = self._read(cluster.parse_config, cluster.config_argv())
        partitions = self._read(cluster.parse_partitions, cluster.partitions_argv())
        self._nodes()
        accounting = here["sacct"] and config.get("AccountingStorageType", "") not in ("", "accounting_storage/none")
        missing = [f"{name} is not on PATH" for name, there in here.items() if not there]
        if not self._json:
            missing.append("sinfo has no --json here: nodes are read as text")
        if not accounting:
            missing.append("no accounting: how a pilot ended is known for MinJobAge only")
        limits = {name: config[name] for name in _LIMITS if config.get(name)}
        for part in partitions:
            limits |= _limits_of(part)
        mode, kind = config.get("PreemptMode", ""), config.get("PreemptType", "")
        return Capabilities(
            kind=self.kind,
            version=version or config.get("SLURM_VERSION", ""),
            json=self._json,
            preemption="" if kind in ("", "preempt/none") else f"{mode} ({kind.removeprefix('preempt/')})",
            limits=limits,
            queues=tuple(part.name for part in partitions),
            commands=here,
            missing=tuple(missing),
            not_preempted={part.name: self._not_preempted(config, part, partitions, part.nodes) for part in partitions},
        )

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        """See `BatchAdapter`. Where no variable has the end, Slurm is asked; without an answer it is not known."""
        found = allocation_of(environ)
        if found is None or found.until is not None:
            return found
        try:
            listed = self._read(jobs.jobs_of_text, jobs.jobs_argv([found.id]), _SOON_S)
        except BatchError:
            return found
        job = next((job for job in listed if job.id == found.id), None)
        return (
            found
            if job is None
            else replace(found, until=job.end, started_at=job.start, queue=job.queue or found.queue)
        )

    def holes(self, now: float, own: Collection[str]) -> tuple[Hole, ...]:
        """See `BatchAdapter`."""
        seen = self._nodes()
        parts = self._read(cluster.parse_partitions, cluster.partitions_argv())
        reservations = self._read(cluster.parse_reservations, cluster.reservations_argv())
        expected = self._read(jobs.expected_of_text, jobs.expected_argv())
        live = [each for each in reservations if each.end is None or each.end > now]
        uses = [planned_job(job.id, job.start, job.nodes, job.id in own) for job in expected]
        uses += [_use_of(each) for each in live if each.name != self._wanted.reservation]
        limits = self._licence_limits(now, live)
        idle = [node for node in seen if node.idle]
        if self._wanted.reservation:
            mine = next((each for each in live if each.name == self._wanted.reservation), None)
            if mine is None or mine.start > now:
                return ()
            idle = [node for node in idle if node.name in mine.nodes]
            if mine.end is not None:
                limits.append(PlannedUse(mine.end, (), f"the reservation {mine.name} ends"))
        else:
            idle = [node for node in idle if not node.set_aside]
        config = self._read(cluster.parse_config, cluster.config_argv())
        self._by_tier = config.get("PreemptType", "") == "preempt/partition_prio"
        self._seen = (parts, expected)
        free = [IdleNode(node.name, node.queues, node.gpus, node.kind, node.planned) for node in idle]
        queues = [OpenQueue(each.name, each.walltime_s, each.nodes_min, each.nodes_max) for each in parts if each.open]
        found = find_holes(now, free, uses, queues, limits)
        by_name = {part.name: part for part in parts}
        whys = [self._not_preempted(config, by_name[hole.queue], parts, hole.nodes) for hole in found]
        return tuple(replace(hole, preemptable=not why, why_not=why) for hole, why in zip(found, whys, strict=True))

    def idle_nodes(self) -> IdleNodes:
        """See `BatchAdapter`. In text, which costs a tenth of what JSON does; in JSON once text is not understood."""
        if self._grouped:
            try:
                return self._read(nodes.idle_of_text, nodes.all_argv())
            except BatchError as error:
                if error.away:
                    raise
                trouble = error
        else:
            trouble = BatchError("sinfo: it printed no JSON any more", again=True)
        try:
            seen = nodes.nodes_of_json(self._ask(nodes.nodes_argv(True)))
        except (BatchError, ValueError):
            raise trouble from None
        if not seen:
            raise trouble
        self._grouped = False
        return IdleNodes(frozenset(node.name for node in seen if node.for_anybody), len(seen))

    def _not_preempted(
        self,
        config: Mapping[str, str],
        part: cluster.Partition,
        parts: Sequence[cluster.Partition],
        nodes: Collection[str],
    ) -> str:
        """Why batch jobs there are not ended for others', "" where they are."""
        kind = config.get("PreemptType", "").removeprefix("preempt/")
        if kind == "partition_prio":
            return cluster.not_preempted(part, parts, nodes)
        if kind != "qos":
            return "nothing is preempted here: PreemptType is none"
        if not self._wanted.qos:
            return "PreemptType is qos, and the site's options name no --qos"
        try:
            told = self._ask(cluster.qos_argv())
            return cluster.qos_not_preempted(told, self._wanted.qos, config.get("PreemptMode", ""))
        except BatchError as error:
            return f"which QOS preempts {self._wanted.qos} is not known: {error}"

    def waiting(self, own: Collection[str]) -> tuple[PendingBatchJob, ...]:
        """See `BatchAdapter`.

        A batch job could start on the nodes that it names, else on any of its partition, as far as they have the
        features and the type of GPU that it asks for. Those that Slurm has chosen for it already may be others than
        ours merely because they are free sooner.
        """
        parts, expected = self._seen
        found = []
        looks: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        for job in expected:
            part = next((each for each in parts if each.name == job.queue), None)
            if not job.for_nodes or part is None or job.id in own or job.comment.startswith("hpcdl:"):
                continue
            on = job.on if len(job.on) >= job.count else part.nodes
            if job.features or job.kinds:
                looks = looks or self._read(nodes.looks_of, nodes.shown_argv())
                on = tuple(node for node in on if node in looks and job.takes(*looks[node]))
            count = max(job.count, len(job.on))
            preempts = frozenset(each.name for each in parts if part in cluster.higher(each, parts))
            found.append(PendingBatchJob(job.id, count, on, job.queue, preempts if self._by_tier else frozenset()))
        return tuple(found)

    def submit(self, spec: PilotSpec, script: PilotScript) -> str:
        """See `BatchAdapter`."""
        argv = submit.submit_argv(spec, script, self._stale)
        done = self._run(argv, stdin=submit.submit_script(script))
        if done.code != 0:
            raise submit.refusal(done.err, done.out)
        return submit.submitted(done.out)

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """See `BatchAdapter`. From squeue alone."""
        wanted = set(ids)
        if not wanted:
            return {}
        found = {job.id: jobs.batch_job(job) for job in self._listed(sorted(wanted)) if job.id in wanted}
        return {id_: found.get(id_) or BatchJob(id_, BatchState.MISSING) for id_ in sorted(wanted)}

    def confirm(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """See `BatchAdapter`. By `scontrol show job`; the accounting is asked how those ended that it does not know.

        An accounting that answers nothing, or that such a job runs, proves nothing: it may never have heard its end.
        """
        found = {id_: self._shown(id_) for id_ in sorted(set(ids))}
        rest = {id_ for id_, job in found.items() if job.state in (BatchState.GONE, BatchState.UNKNOWN)}
        if rest and self._accounting:
            with suppress(BatchError):
                told = [jobs.batch_job(job) for job in self._accounted(sorted(rest)) if job.id in rest]
                found |= {job.id: job for job in told if job.state is BatchState.ENDED}
        return found

    def _shown(self, id_: str) -> BatchJob:
        done = self._run(jobs.shown_argv(id_), env=TIMES)
        if done.code != 0 and jobs.no_such_jobs(done.err):
            return BatchJob(id_, BatchState.GONE)
        try:
            return jobs.batch_job(jobs.job_of_shown(id_, checked("scontrol", done)))
        except BatchError as error:
            return BatchJob(id_, BatchState.UNKNOWN, reason=str(error))

    def marked(self, prefix: str) -> tuple[BatchJob, ...]:
        """See `BatchAdapter`."""
        listed = self._read(jobs.jobs_of_text, jobs.own_jobs_argv(str(os.getuid())))
        return tuple(jobs.batch_job(job) for job in listed if job.comment.startswith(prefix) and not job.was_refused)

    def cancel(self, ids: Collection[str]) -> None:
        """See `BatchAdapter`."""
        if ids:
            self._tell(submit.cancel_argv(sorted(ids)))

    def signal(self, batch_id: str, name: str) -> None:
        """See `BatchAdapter`."""
        self._tell(submit.signal_argv(batch_id, name))

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
        """See `BatchAdapter`."""
        return tuple(submit.launch_argv(allocation, node, argv))

    def topology(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        """See `BatchAdapter`."""
        return self._read(lambda text: cluster.parse_topology(text, nodes), cluster.topology_argv())

    def _nodes(self) -> tuple[nodes.SlurmNode, ...]:
        return self._either(
            lambda: nodes.nodes_of_json(self._ask(nodes.nodes_argv(True)), idle_only=True),
            lambda: self._read(nodes.nodes_of_text, nodes.nodes_argv(False)),
        )

    def _listed(self, ids: Collection[str]) -> tuple[jobs.SlurmJob, ...]:
        def as_text() -> tuple[jobs.SlurmJob, ...]:
            printed = self._ask_for_jobs(jobs.jobs_argv(ids))
            return () if printed is None else understood("squeue", partial(jobs.jobs_of_text, printed))

        def as_json() -> tuple[jobs.SlurmJob, ...]:
            printed = self._ask_for_jobs(jobs.jobs_json_argv(ids))
            return () if printed is None else jobs.jobs_of_json(printed)

        if not self._json or self._version_() < _JSON_OF_JOBS:
            return as_text()
        return self._either(as_json, as_text)

    def _either(self, as_json: Callable[[], T], as_text: Callable[[], T]) -> T:
        """In JSON where Slurm has that; once it has not, in text from then on."""
        if self._json:
            try:
                return as_json()
            except ValueError:
                pass
            except BatchError as error:
                if error.away:
                    raise
        found = as_text()
        self._json = False  # an answer that is nothing in either form says nothing of the forms
        return found

    def _accounted(self, ids: Collection[str]) -> tuple[jobs.SlurmJob, ...]:
        done = self._run(jobs.accounted_argv(ids), env=TIMES)
        if done.code != 0 and jobs.no_accounting(done.err + done.out):
            self._accounting = False
            return ()
        return understood("sacct", partial(jobs.jobs_of_accounting, checked("sacct", done)))

    def _licence_limits(self, now: float, reservations: Sequence[cluster.Reservation]) -> list[PlannedUse]:
        """When the licences that each pilot asks for are not there any more."""
        if not self._wanted.licences:
            return []
        free = self._read(cluster.parse_licences, cluster.licences_argv())
        limits = []
        for name, count in self._wanted.licences:
            if free.get(name, 0) < count:
                limits.append(PlannedUse(now, (), f"{free.get(name, 0)} licences of {name} are free"))
            for kept in reservations:
                if free.get(name, 0) - kept.licences.get(name, 0) < count and name in kept.licences:
                    limits.append(PlannedUse(kept.start, (), f"the reservation {kept.name} takes licences of {name}"))
        return limits

    def _version_(self) -> tuple[int, ...]:
        if self._version is None:
            said = cluster.parse_version(self._ask(["sinfo", "--version"]))
            if not said:
                return ()
            self._version = tuple(int(part) for part in said.split(".") if part.isdecimal())
        return self._version

    def _ask(self, argv: Sequence[str], timeout_s: float = 30.0) -> str:
        return checked(argv[0], self._run(argv, timeout_s, env=TIMES))

    def _read(self, parse: Callable[[str], T], argv: Sequence[str], timeout_s: float = 30.0) -> T:
        return understood(argv[0], partial(parse, self._ask(argv, timeout_s)))

    def _ask_for_jobs(self, argv: Sequence[str]) -> str | None:
        """None: it knows none of these."""
        done = self._run(argv, env=TIMES)
        return None if done.code != 0 and jobs.no_such_jobs(done.err) else checked(argv[0], done)

    def _tell(self, argv: Sequence[str]) -> None:
        done = self._run(argv)
        wrong = done.code != 0 or "error" in done.err.lower()
        if wrong and not jobs.no_such_jobs(done.err):
            checked(argv[0], replace(done, code=done.code or 1))


def _use_of(kept: cluster.Reservation) -> PlannedUse:
    what = "maintenance" if kept.maintenance else "the reservation"
    return PlannedUse(kept.start, kept.nodes, f"{what} {kept.name} begins")


def _limits_of(part: cluster.Partition) -> dict[str, str]:
    found = {"MaxTime": None if part.walltime_s is None else f"{part.walltime_s:.0f} s"}
    found["MaxNodes"] = None if part.nodes_max is None else str(part.nodes_max)
    found["MinNodes"] = str(part.nodes_min) if part.nodes_min > 1 else None
    found["PreemptMode"] = part.preemption or None
    found["GraceTime"] = f"{part.grace_s:.0f} s" if part.grace_s else None
    found["State"] = None if part.open else "takes no jobs"
    return {f"{part.name} {name}": value for name, value in found.items() if value}
