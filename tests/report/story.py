"""Event rows as the API answers them, made from events; and the paper's set 3 as its figure 5 tells it."""

from collections.abc import Iterable
from typing import Any

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Role, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import GpuInfo, JobState


def rows(stamped: Iterable[tuple[float, ev.Event]]) -> list[dict[str, Any]]:
    """As daemon/api/rows.py writes them: of the environment only the names."""
    rows = []
    for seq, (at, event) in enumerate(stamped, 1):
        body = ev.encode(event)
        if isinstance(body.get("spec"), dict):
            body["spec"]["env"] = [pair[0] for pair in body["spec"]["env"]]
        rows.append({"seq": seq, "at": at, "stream": event.stream, "version": seq, "kind": event.kind, "body": body})
    return rows


def node(name: str, gpus: int) -> ev.NodeJoined:
    return ev.NodeJoined(name, tuple(GpuInfo(index, f"GPU-{name}-{index}") for index in range(gpus)), emulated=True)


def submitted(job: int, name: str, steps: int | None = None, profile: str | None = None) -> ev.JobSubmitted:
    spec = JobSpec(("train", name), name, gpus_max=6, profile=profile, steps=steps, env=(("LANG", "C"),))
    return ev.JobSubmitted(job, spec, f"request-{job}")


def placed(gpus: Iterable[int], role: Role = Role.PRIMARY, name: str = "n1") -> Placement:
    return Placement((Share(name, tuple(gpus)),), role)


def set_three(origin: float = 1000.0) -> list[tuple[float, ev.Event]]:
    """ResNet-50 on 3 GPUs, Inception-v3 beside it on 3, suspended and resumed on 4, VGG-16 on the 2 that are left."""
    told: list[tuple[float, ev.Event]] = [
        (0, node("n1", 6)),
        (0, submitted(1, "ResNet-50", 900, "resnet-50")),
        (0, submitted(2, "Inception-v3", 2000, "inception-v3")),
        (0, submitted(3, "VGG-16", 800, "vgg-16")),
        (0, ev.StartRequested(1, 1, ("n1",), placed([0, 1, 2]))),
        (0, ev.StartRequested(2, 1, ("n1",), placed([3, 4, 5], Role.SECONDARY))),
        (37, ev.TrainerReady(1, 1, 1, "n1")),
        (37, ev.TrainerReady(2, 1, 1, "n1")),
        (152, ev.Exited(1, 1, 1, "n1", code=0, step=900)),
        (152, ev.GpusFreed(1, 1, 1, "n1")),
        (152, ev.IncarnationEnded(1, 1, Cause.DONE, reached=900, final=JobState.DONE)),
        (152, ev.JobEnded(1, JobState.DONE)),
        (152, ev.SuspendRequested(2, 1, Purpose.RESCALE, 60.0)),
        (165, ev.Saved(2, 1, 1, "n1", step=507, seconds=0.02, final=True)),
        (166, ev.Exited(2, 1, 1, "n1", code=0, ended_by="suspend", step=507)),
        (167, ev.GpusFreed(2, 1, 1, "n1")),
        (167, ev.IncarnationEnded(2, 1, Cause.SUSPENDED, reached=507, step=507)),
        (167, ev.StartRequested(2, 2, ("n1",), placed([0, 1, 2, 3]))),
        (167, ev.StartRequested(3, 1, ("n1",), placed([4, 5], Role.SECONDARY))),
        (204, ev.TrainerReady(3, 1, 1, "n1")),
        (218, ev.TrainerReady(2, 2, 1, "n1", step=507)),
        (321, ev.Exited(3, 1, 1, "n1", code=0, step=800)),
        (321, ev.GpusFreed(3, 1, 1, "n1")),
        (321, ev.IncarnationEnded(3, 1, Cause.DONE, reached=800, final=JobState.DONE)),
        (321, ev.JobEnded(3, JobState.DONE)),
        (501, ev.Exited(2, 2, 1, "n1", code=0, step=2000)),
        (501, ev.GpusFreed(2, 2, 1, "n1")),
        (501, ev.IncarnationEnded(2, 2, Cause.DONE, reached=2000, final=JobState.DONE)),
        (501, ev.JobEnded(2, JobState.DONE)),
    ]
    return [(origin + at, event) for at, event in told]
