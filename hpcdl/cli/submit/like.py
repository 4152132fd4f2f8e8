"""`hpcdl submit --like JOB`: a new job with what another one was submitted with, but for what is given anew.

A job's row has no values of its environment and nothing secret of its destinations: the daemon fills in both
(`daemon/api/submit`), so they never leave it. What belongs to the one job alone is not carried, and that is said.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hpcdl.batch.options import ExportedVariables
from hpcdl.cli.output import Row
from hpcdl.cli.submit.job import JobRequest, default_name, job_request
from hpcdl.cli.submit.options import AFTER
from hpcdl.core.model.frozen import CodecError, from_json
from hpcdl.core.model.job import JobSpec

_FIELDS = {
    "gpus": ("gpus_min", "gpus_max", "gpus_counts"),
    "nodes": ("nodes", "nodes_max", "rescale"),
    "mem": ("memory_mib",),
    "gpu_memory": ("gpu_memory_mib",),
    "time": ("time_s",),
    "grace": ("grace_s",),
    "deadline": ("deadline", "ect"),
    "accuracy": ("accuracy_target",),
    "stall": ("stall_s", "stall_restart"),
    "burst_plan": ("burst",),
    "burst_limit": ("burst",),
    "tag": ("tags",),
    "link": ("links",),
    "gate": ("gate", "command"),
    "signal": ("signal", "command", "batch"),
    "sweep": ("command", "batch_size", "batch_sweep"),
    "batch": ("batch_size", "batch_sweep"),
    "output": ("output", "batch"),
    "error": ("error", "batch"),
    **dict.fromkeys(AFTER, ("after", "conditions")),
}
"""Fields of a job that an option sets, where they are not one of its own name."""

_OWN: dict[str, Any] = {
    "after": (), "conditions": (), "deadline": None, "checkpoint_dir": None, "continue_from": "", "git": None,
    "env": (), "notify": (), "array": 0, "array_index": 0, "array_most": 0, "sweep": (),
}  # fmt: skip
"""Fields that are not carried here, and what a new job has instead."""


@dataclass(frozen=True, slots=True)
class Template:
    """Job `id`, as it was submitted."""

    id: int
    spec: JobSpec

    @classmethod
    def of(cls, row: Row) -> "Template":
        """Of the row of `GET /v1/jobs/ID`. Raises ValueError."""
        plain: Mapping[str, Any] = row["spec"]
        why = ", ".join(sorted(plain.keys() - {field.name for field in fields(JobSpec)}))
        try:
            if not why:
                return cls(row["id"], from_json(JobSpec, {**plain, "env": [], "notify": []}))
        except CodecError as error:
            why = str(error)
        raise ValueError(f"this hpcdl does not know all of job {row['id']} ({why}): use the daemon's hpcdl")

    def request(
        self, given: Mapping[str, Any], typed: Collection[str], command: Sequence[str], here: Path
    ) -> JobRequest:
        """The new job. `given`: values of submit's options, those of `typed` from the command line; `command`: () for
        the job's own. Raises as `job_request`.
        """
        old = self.spec
        values = dict(given) | {"exports": ExportedVariables(every=False)}
        carried = {"gpus": (old.gpus_min, old.gpus_max, old.gpus_counts), "signal": old.signal}
        carried["nodes"] = (old.nodes, old.nodes_max or old.nodes)
        if "batch" not in dict(given["sweep"]):
            carried["batch"] = (old.batch_size, "")
        if "nodes" not in typed:
            carried["rescale"] = old.rescale
        values |= {name: value for name, value in carried.items() if name not in typed}
        if command:
            values["gate"] = given["gate"] or old.gate
        else:  # it stands behind its gate, and runs as a batch script does, already
            values |= {"gate": given["gate"] and not old.gate, "tasks": old.batch}
        made = job_request(values, command or old.command, here)
        taken = {field for name in typed for field in _FIELDS.get(name, (name,)) if hasattr(made.spec, field)}
        if command:
            taken |= {"command", "gate", "batch"}
            if old.name == default_name(old.command):
                taken.add("name")
        changes = {name: getattr(made.spec, name) for name in (taken | {"user", "env"}) - {"array", "sweep"}}
        return replace(made, spec=replace(old, **_OWN | changes), like=self.id, own_notify="notify" in typed)

    def left_out(self, typed: Collection[str]) -> str:
        """What of the job the new one does not have, in a line; "" for nothing."""
        old, found = self.spec, []
        if old.checkpoint_dir is not None and "checkpoint_dir" not in typed:
            go_on = f"--checkpoint-dir {old.checkpoint_dir} --continue-from {self.id} goes on from it"
            found.append(f"its checkpoint folder ({go_on})")
        if (old.after or old.conditions) and not AFTER.keys() & set(typed):
            found.append("the jobs that it waited for (--after)")
        if old.deadline is not None and old.ect is None and "deadline" not in typed:
            found.append("its deadline (--deadline)")
        if old.array and not {"array", "sweep"} & set(typed):
            found.append("its place in an array")
        return f"not carried from job {self.id}: {', '.join(found)}" if found else ""

    def changes(self, spec: JobSpec) -> Iterator[tuple[str, str]]:
        """What a dry run says of the new job: its command, and what differs."""
        import shlex

        yield f"like job {self.id}", shlex.join(spec.command)
        for field in fields(JobSpec):
            before, now = getattr(self.spec, field.name), getattr(spec, field.name)
            if field.name == "env":
                if now:
                    yield "env", f"that of job {self.id}, with {', '.join(name for name, _ in now)}"
            elif before != now and field.name not in ("array", "array_index", "array_most", "sweep", "git", "command"):
                yield field.name, f"{_text(before)} -> {_text(now)}"


def _text(value: Any) -> str:
    return "-" if value is None or value == () or value == "" else str(value)
