"""Batch jobs in Slurm: how squeue, scontrol and sacct are asked for them, and what these print, in JSON or text.

Pure: `adapter.py` runs the commands. A state of Slurm's that is not in `STATES` is UNKNOWN, and concludes nothing.
"""

import re
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace

from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchJob, BatchState
from hpcdl.slurm.text import columns, entries, expand, hosts, moment, number, pairs, rows, string, told, words

_FIELDS = (
    "JobID", "Partition", "State", "StartTime", "EndTime", "PreemptTime", "exit_code", "NodeList", "SchedNodes",
    "Reason", "Comment", "JobID",
)  # fmt: skip
"""Of squeue. The id stands at both ends: a comment may hold separators and line breaks, and a cut row is noticed."""

_PLANNED = (
    "JobID", "Partition", "StartTime", "SchedNodes", "NumNodes", "ReqNodes", "Feature", "tres-per-node", "Reason",
    "Comment", "JobID",
)  # fmt: skip
_WAITS = re.compile("Resources|Priority|Nodes required for job are DOWN, DRAINED or reserved", re.IGNORECASE)
_DEPENDENT = ("JobID", "Dependency", "Name", "JobID")
_ACCOUNTED = ("JobIDRaw", "Partition", "State", "Start", "End", "ExitCode", "NodeList", "Comment", "JobIDRaw")
_SHOWN = ("JobState", "Partition", "StartTime", "EndTime", "NodeList", "NumNodes")

_STATES = {
    BatchState.PENDING: "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT EXPEDITING",
    BatchState.RUNNING: "CONFIGURING POWER_UP_NODE RESIZING RUNNING SIGNALING",
    BatchState.SUSPENDED: "STOPPED SUSPENDED",
    BatchState.ENDING: "COMPLETING STAGE_OUT",
    BatchState.ENDED: "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED "
    "RECONFIG_FAIL REVOKED TIMEOUT",
}
STATES = {word: state for state, words_ in _STATES.items() for word in words_.split()}
"""Slurm's states of a job. One that is not here is UNKNOWN."""

_FIRST = ("COMPLETING", "STAGE_OUT", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "SUSPENDED")
"""Where JSON lists a state and its flags, these say more than the state they stand beside."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A batch job. `states`: its state and flags, in upper case. `planned`: nodes that Slurm has chosen for it.

    `start`: when it started, or is expected to. `end`: when it ended, or its walltime or its grace ends.
    """

    id: str
    states: tuple[str, ...]
    queue: str = ""
    start: float | None = None
    end: float | None = None
    preempted_at: float | None = None
    code: int | None = None
    nodes: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    reason: str = ""
    comment: str = ""

    @property
    def was_refused(self) -> bool:
        """Whether it is what sbatch leaves behind when it refuses a job that no node could ever run."""
        return "FAILED" in self.states and not self.nodes and self.reason == "BadConstraints"


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A batch job that waits, and what Slurm plans for it. `start`: None where it is not planned.

    `count`: nodes that it needs at least. `on`: nodes that it must have. `features`, `kinds`: what it asks for of
    each node, as Slurm prints it, and the types of GPUs. `for_nodes`: it waits for nodes, or behind others that do.
    """

    id: str
    start: float | None
    nodes: tuple[str, ...]
    queue: str = ""
    count: int = 1
    on: tuple[str, ...] = ()
    features: str = ""
    kinds: frozenset[str] = frozenset()
    for_nodes: bool = False
    comment: str = ""

    def takes(self, features: Set[str], kinds: Set[str]) -> bool:
        """Whether a node that has these will do; not, where that cannot be told."""
        if not self.kinds <= kinds:
            return False
        if "|" in self.features and re.fullmatch(r"[\w.|-]+", self.features):
            return not features.isdisjoint(self.features.split("|"))
        return not self.features or (
            re.fullmatch(r"[\w.&,-]+", self.features) is not None and features >= set(re.split("[&,]", self.features))
        )


def jobs_argv(ids: Collection[str]) -> list[str]:
    """All of these, those among them that ended a short while ago (MinJobAge). One that is unknown is no error."""
    return [*_squeue("all"), f"--jobs={','.join(ids)}", f"--Format={columns(_FIELDS)}"]


def own_jobs_argv(user: str) -> list[str]:
    """This user's, ended ones included."""
    return [*_squeue("all"), f"--user={user}", f"--Format={columns(_FIELDS)}"]


def dependents_argv(user: str) -> list[str]:
    """This user's batch jobs that run or wait, with what they wait for."""
    return [*_squeue("PENDING,RUNNING"), f"--user={user}", f"--Format={columns(_DEPENDENT)}"]


def dependents_of(id_: str, text: str) -> tuple[str, ...]:
    """Those among what `dependents_argv` prints that wait for nothing but the end of one, and have its name.

    Raises as `rows` does, and BatchError where that one is not listed.
    """
    listed = list(rows(text, _DEPENDENT))
    name = next((name for each, _, name in listed if each == id_), None)
    if name is None:
        raise BatchError(f"it does not list batch job {id_}, which runs", again=True)
    waits = re.compile(rf"afterany:{id_}(\(\w+\))?")
    return tuple(each for each, dependency, called in listed if called == name and waits.fullmatch(dependency))


def expected_argv() -> list[str]:
    """What is planned for everybody's waiting jobs. Text in all versions: JSON of 22.05 has no planned nodes."""
    return [*_squeue("PENDING"), f"--Format={columns(_PLANNED)}"]


def jobs_json_argv(ids: Collection[str]) -> list[str]:
    """As `jobs_argv`, in JSON; only from 23.02 on is it limited to these, and has all that the text has."""
    return [*_squeue("all"), f"--jobs={','.join(ids)}", "--json"]


def _squeue(states: str) -> list[str]:
    return ["squeue", "--all", f"--states={states}"]


def no_such_jobs(err: str) -> bool:
    """Whether a command complains of nothing but that Slurm knows these jobs no more."""
    lines = [line.lower() for line in err.splitlines() if line.strip()]
    gone = ("invalid job id specified", "already completing or completed", "job has finished", "invalid job id")
    return bool(lines) and all(any(word in line for word in gone) for line in lines)


def jobs_of_text(text: str) -> tuple[SlurmJob, ...]:
    """What `jobs_argv` and `own_jobs_argv` print. Raises as `rows` does."""
    found = []
    for id_, *values in rows(text, _FIELDS):
        said = dict(zip(_FIELDS[1:-1], values, strict=True))
        code = said["exit_code"]
        found.append(_job(id_, said["State"], _exit_code(int(code)) if code.isdecimal() else _code_of_pair(code), said))
    return tuple(found)


def _job(id_: str, state: str, code: int | None, said: Mapping[str, str]) -> SlurmJob:
    """A batch job from what a command prints of it, under the names that scontrol has for that."""
    return SlurmJob(
        id=id_,
        states=(state.upper(),),
        queue=said["Partition"],
        start=moment(said["StartTime"]),
        end=moment(said["EndTime"]),
        preempted_at=moment(said.get("PreemptTime", "")),
        code=code,
        nodes=expand(said["NodeList"]),
        planned=expand(said.get("SchedNodes", "")),
        reason=told(said.get("Reason", "")),
        comment=told(said.get("Comment", "")),
    )


def jobs_of_json(text: str) -> tuple[SlurmJob, ...]:
    """What `squeue --json` prints. ValueError: it is something else. Raises as `entries` does."""
    _, found = entries(text, "jobs")
    return tuple(_job_of_entry(entry) for entry in found)


def _job_of_entry(entry: object) -> SlurmJob:
    if not isinstance(entry, Mapping) or number(entry.get("job_id")) is None:
        raise ValueError("a job without an id")
    return SlurmJob(
        id=f"{number(entry['job_id']):.0f}",
        states=words(entry.get("job_state")),
        queue=string(entry.get("partition")),
        start=number(entry.get("start_time")) or None,
        end=number(entry.get("end_time")) or None,
        preempted_at=number(entry.get("preempt_time")) or None,
        code=_code_of_entry(entry.get("exit_code")),
        nodes=expand(hosts(entry.get("nodes"))),
        planned=expand(hosts(entry.get("scheduled_nodes"))),
        reason=told(string(entry.get("state_description"))) or told(string(entry.get("state_reason"))),
        comment=told(string(entry.get("comment"))),
    )


def _code_of_entry(value: object) -> int | None:
    """A wait status up to 23.02, later `{"status": …, "return_code": …, "signal": {"id": …}}`."""
    if not isinstance(value, Mapping) or "number" in value:
        raw = number(value)
        return None if raw is None else _exit_code(int(raw))
    sent = value.get("signal")
    ended_by = sent.get("id", sent.get("signal_id")) if isinstance(sent, Mapping) else None
    by, code = number(ended_by), number(value.get("return_code"))
    if by:
        return 128 + int(by)
    return None if code is None else int(code)


def _exit_code(status: int) -> int:
    """A wait status as shells report it: 128 and the signal for what a signal ended."""
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8


def expected_of_text(text: str) -> tuple[PlannedJob, ...]:
    """What `expected_argv` prints. Raises as `rows` does."""
    found = []
    for id_, queue, start, names, count, on, features, per_node, reason, comment in rows(text, _PLANNED):
        least = re.match(r"\d+", count)
        found.append(
            PlannedJob(
                id=id_,
                start=moment(start),
                nodes=expand(names),
                queue=queue,
                count=max(1, int(least[0]) if least else 1),
                on=expand(on),
                features=told(features),
                kinds=frozenset(re.findall(r"gpu:([^:,\d][^:,(]*)", told(per_node))),
                for_nodes=_WAITS.match(reason.replace("_", " ")) is not None,
                comment=told(comment),
            )
        )
    return tuple(found)


def shown_argv(id_: str) -> list[str]:
    """One batch job, by another command than squeue; one that is unknown is an error."""
    return ["scontrol", "show", "job", id_, "--oneliner"]


def job_of_shown(id_: str, text: str) -> SlurmJob:
    """What `shown_argv` prints; of an array's leader there are several. Raises BatchError: it says nothing of the job.

    A comment may break the line; nothing that is read stands behind it.
    """
    for part in re.split(r"^(?=JobId=)", text, flags=re.MULTILINE):
        said = pairs(part)
        if part.startswith("JobId=") and said["JobId"] == id_ and said.keys() >= set(_SHOWN):
            job = _job(id_, said["JobState"], _code_of_pair(said.get("ExitCode", "")), said)
            return replace(job, reason=job.reason.replace("_", " "))
    raise BatchError(f"scontrol says nothing that is understood of batch job {id_}")


def has_lost_first(id_: str, text: str) -> bool | None:
    """Whether a batch job that Slurm may requeue has lost the node of its script, and is there or failed by that; None
    where it may not be requeued. `text`: of scontrol. Raises BatchError where that says nothing of it.
    """
    said = pairs(text)
    if said.get("JobId") != id_ or not said.keys() >= {"JobState", "Requeue", "BatchHost", "NodeList"}:
        raise BatchError(f"scontrol says nothing that is understood of batch job {id_}")
    if said["Requeue"] == "0":
        return None
    ended = said["JobState"] not in ("RUNNING", "FAILED", "NODE_FAIL", "COMPLETING")
    first, left = told(said["BatchHost"]), expand(said["NodeList"])
    return not ended and bool(first) and bool(left) and first not in left


def accounted_argv(ids: Collection[str]) -> list[str]:
    """Jobs that squeue no longer lists, from the accounting; the whole job, not its steps, its last start."""
    return [
        *("sacct", "--parsable", "--allocations"),
        *(f"--jobs={','.join(ids)}", f"--format={','.join(_ACCOUNTED)}"),
    ]


def no_accounting(err: str) -> bool:
    """Whether there is none here at all, as against one that does not answer."""
    return "storage is disabled" in err.lower() or "not configured" in err.lower()


def jobs_of_accounting(text: str) -> tuple[SlurmJob, ...]:
    """What `accounted_argv` prints. Raises as `rows` does."""
    names = (*_ACCOUNTED[1:3], "StartTime", "EndTime", *_ACCOUNTED[5:-1])
    found = []
    for id_, *values in rows(text, _ACCOUNTED):
        said = dict(zip(names, values, strict=True))
        if state := said["State"].split():
            found.append(_job(id_, state[0], _code_of_pair(said["ExitCode"]), said))
    return tuple(found)


def _code_of_pair(text: str) -> int | None:
    """`STATUS:SIGNAL` of scontrol, sacct and (24.11) squeue as shells report it."""
    status, _, sent = text.partition(":")
    if sent.isdecimal() and int(sent):
        return 128 + int(sent)
    return int(status) if status.isdecimal() else None


def batch_job(job: SlurmJob) -> BatchJob:
    """In the words of the core."""
    word = _word(job.states)
    state = STATES.get(word, BatchState.UNKNOWN)
    holds = state in (BatchState.RUNNING, BatchState.SUSPENDED, BatchState.ENDING)
    begun = holds or (state is BatchState.ENDED and bool(job.nodes))
    preempted = "PREEMPTED" in job.states or (job.preempted_at is not None and state is not BatchState.PENDING)
    return BatchJob(
        id=job.id,
        state=state,
        mark=job.comment,
        queue=job.queue,
        nodes=job.nodes if begun else (),
        started_at=job.start if begun else None,
        until=job.end if holds else None,
        reason=_reason(job, state, word),
        preempted=preempted,
        code=job.code if state is BatchState.ENDED else None,
        by_hand="CANCELLED" in job.states and not preempted,
        failed=state is BatchState.ENDED and job.code == 0 and "COMPLETED" not in job.states,
    )


def _word(states: tuple[str, ...]) -> str:
    """The one that says most, which is the one that squeue prints as text. "" without any."""
    known = [word for word in _FIRST if word in states] + [word for word in states if word in STATES]
    return next(iter([*known, *states]), "")


def _reason(job: SlurmJob, state: BatchState, word: str) -> str:
    """Why it waits, or is stopped, or how it ended; words of Slurm."""
    if state is BatchState.RUNNING:
        return job.reason
    if state is BatchState.PENDING:
        return job.reason or word
    return f"{word} ({job.reason})" if job.reason else word
