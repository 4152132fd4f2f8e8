"""`hpcdl submit --burst-plan`, `--burst-limit`: the plans of a burst-parallel job, by its number of GPUs.

Planned once, on submit (hpcdl/deeppool): whichever of its numbers of GPUs a policy chooses, the plan is there already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdl.core.model.job import StagePlan

if TYPE_CHECKING:
    from hpcdl.deeppool.problem import BurstProblem

RANKS = "hpcdl.trainer.ranks"
MOST_PLANS = 64  # of widths that are any whole numbers; more numbers of GPUs are then planned for as powers of two


def stage_plans(
    given: Mapping[str, Any], command: Sequence[str], folder: Path, most: int | None
) -> tuple[StagePlan, ...]:
    """The plans for 1 to `most` GPUs (None: those of the problem), () where none is asked for.

    Without a file the layers are measured here and now. Raises ValueError and ClickException.
    """
    file, limit = given["burst_plan"], given["burst_limit"]
    if file is None and limit is None:
        return ()
    import json

    from hpcdl.cli.burst.document import read_document
    from hpcdl.cli.burst.profile import measure
    from hpcdl.deeppool.problem import read_problem

    if file is None:
        script = command[list(command).index("--") + 1 :] if RANKS in command else command
        document = json.loads(measure(tuple(script), folder, ["--gpus", str(most or 8)]))
    else:
        document = read_document(file)
    if limit is not None:
        document |= {"limit": limit, "budget": None}
    problem = replace(read_problem(document | {"branches": "sequence"}), gpus=most or int(document["gpus"]))
    for layer, before in zip(problem.layers, (None, *problem.layers), strict=False):
        if list(layer.inputs) != ([] if before is None else [before.name]):
            raise ValueError(
                f"layer {layer.name!r} does not read the one before it: burst.run trains a chain of stages"
            )
    return _plans(problem)


def _plans(problem: "BurstProblem") -> tuple[StagePlan, ...]:
    """Of ever more GPUs, as far as each is faster than the one before."""
    from hpcdl.deeppool.planner import plan_burst

    numbers: Sequence[int] = range(1, problem.widest + 1)
    if problem.widths != "all" or len(numbers) > MOST_PLANS:
        numbers = [1 << power for power in range(problem.widest.bit_length())]
    plans: list[StagePlan] = []
    for gpus in numbers:
        plan = plan_burst(replace(problem, gpus=gpus))
        if not plans or plan.time_ms < plans[-1].time_ms:
            stage_ms = tuple(float(f"{layer.time_ms:.4g}") for layer in plan.layers)
            plans.append(StagePlan(gpus, plan.time_ms, tuple(layer.gpus for layer in plan.layers), stage_ms))
    return tuple(plans)
