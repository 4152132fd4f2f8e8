"""Hand-made views for the policies of elastic/."""

from dataclasses import replace

from hpcdl.core.model.plan import JobView, NodeView, Plan, View
from hpcdl.core.model.profile import Profile
from tests.adaptive import views
from tests.adaptive.views import node

# The paper's example: 1.7 times as fast on two GPUs, 2.4 times on four. The costs are those of figure 3.
RESNET = Profile(
    "resnet",
    ((1, 1, 1.0), (1, 2, 1.7), (1, 4, 2.4)),
    startup_s=110.0,
    gate_s=83.0,
    resume_s=27.0,
    resume_up_s=37.0,
    move_save_s=35.0,
    move_s=207.0,
)


KNOWN: dict[str, object] = {"gpus_max": 4, "counts": (1, 2, 4), "profile": RESNET, "submitted_at": 0.0, "step": 0}


def job(number: int, total: int | None = 1000, **more: object) -> JobView:
    return views.job(number, total, **(KNOWN | more))


def running(number: int, *gpus: int, on: str = "n1", total: int | None = 1000, **more: object) -> JobView:
    return views.running(number, *gpus, on=on, total=total, **(KNOWN | more))


def view(*jobs: JobView, nodes: tuple[NodeView, ...] = (node("n1", 4),), now: float = 1000.0) -> View:
    return View(now, nodes, jobs)


def adopted(seen: View, plan: Plan) -> View:
    """The next view when nothing has happened but that the plan was adopted."""
    targets = plan.by_job()
    return replace(seen, jobs=tuple(replace(each, target=targets[each.id].placement) for each in seen.jobs))
