"""`hpcdl burst plan`: how many GPUs each layer of a model is given. Needs no daemon.

The planner is in hpcdl/deeppool; what it plans for is read in `document`, and measured by `profile`.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.burst.compare import compare, scaling
from hpcdl.cli.burst.document import AMPLIFICATION, BATCH, GPUS, PROBLEM, read_with
from hpcdl.cli.burst.profile import profile
from hpcdl.cli.output import Column, Output, escape, outputs_as, print_fields, print_table
from hpcdl.cli.params import OutputFile, replace_file
from hpcdl.core.model.units import count

if TYPE_CHECKING:
    from hpcdl.deeppool.planner import BurstPlan
    from hpcdl.deeppool.problem import BurstProblem


@click.group()
def burst() -> None:
    """Plan burst-parallel training: a number of GPUs for each layer (DeepPool)."""


burst.add_command(compare)
burst.add_command(scaling)


burst.add_command(profile)


@burst.command(short_help="Plan the GPUs of each layer.")
@PROBLEM
@GPUS
@BATCH
@click.option("--limit", type=AMPLIFICATION, metavar="A",
              help="Each layer within A x its GPU-time on one GPU.")  # fmt: skip
@click.option("--budget", type=AMPLIFICATION, metavar="A",
              help="The iteration within A x its GPU-time on one GPU.")  # fmt: skip
@click.option("--why", is_flag=True, help="Say of each layer what other widths would cost.")
@click.option("-o", "--output", "page", type=OutputFile(), metavar="FILE", help="The HTML file to draw the plan into.")
@outputs_as("The GPUs of each layer only, one a line.")
def plan(
    ctx: click.Context, /, output: Output, problem: str, gpus: int | None, batch: int | None, **values: Any
) -> None:
    """Plan how many GPUs each layer is given, for the shortest iteration.

    PROBLEM.json holds the layers, what they cost and the network; - is stdin; vgg16 and inception-v3 come with hpcdl.

    hpcdl burst plan vgg16 --gpus 8 --limit 2
    """
    from hpcdl.deeppool.planner import plan_burst, plan_to_json

    if values["limit"] is not None and values["budget"] is not None:
        raise click.UsageError("--limit and --budget exclude each other", ctx)
    case = read_with(problem, gpus=gpus, global_batch=batch, limit=values["limit"], budget=values["budget"])
    begun = time.perf_counter()
    made = plan_burst(case)
    answer = plan_to_json(case, made, time.perf_counter() - begun)
    reasons: Mapping[str, str] = {}
    if values["why"]:
        from hpcdl.deeppool.why import width_reasons

        reasons = width_reasons(case, made)
        answer["layers"] = [{**layer, "why": reasons[layer["name"]]} for layer in answer["layers"]]
    if values["page"] is not None:
        from hpcdl.deeppool.page import plan_page

        replace_file(values["page"], plan_page(case, made, f"Burst-parallel plan of {problem}", reasons))
    if not output.print_data(answer, [f"{layer.gpus} {layer.name}" for layer in made.layers]):
        _print_plan(case, made, answer)
        if values["page"] is not None:
            print(f"\nwrote {escape(str(values['page']))}")


def _print_plan(case: "BurstProblem", made: "BurstPlan", answer: dict[str, Any]) -> None:
    from hpcdl.deeppool.planner import uncounted

    plain = answer["data_parallel"]
    print_fields([
        ("iteration", f"{made.time_ms:.4g} ms{'' if made.optimal else f' (none is under {made.bound_ms:.4g} ms)'}"),
        ("GPU-time", f"{made.gpu_ms:.4g} GPU-ms, {_times(made.gpu_ms, made.one_gpu_ms)} that of one GPU"),
        ("data parallel", f"{plain['time_ms']:.4g} ms, {plain['gpu_ms']:.4g} GPU-ms on {count(case.widest, 'GPU')}"),
        ("one GPU", f"{made.one_gpu_ms:.4g} ms"),
        ("search", f"{'optimal' if made.optimal else 'not proven optimal'}, {1e3 * answer['seconds']:.3g} ms"),
        *((what.replace("_", " "), f"{said}: it takes longer") for what, said in uncounted(case).items()),
    ])  # fmt: skip
    print()
    columns = [
        Column("LAYER", lambda row: escape(row["name"])),
        Column("GPUS", lambda row: str(row["gpus"]), right=True),
        Column("FROM GPU", lambda row: str(row["first_gpu"]), right=True),
        Column("START MS", lambda row: f"{row['start_ms']:.3f}", right=True),
        Column("MS", lambda row: f"{row['time_ms']:.3f}", right=True),
        Column("AMPLIFICATION", lambda row: _amplification(row["amplification"]), right=True),
        Column("EXTRAPOLATED", lambda row: "yes" if row.get("extrapolated") else "-"),
    ]
    if "why" in answer["layers"][0]:
        columns.append(Column("WHY", lambda row: escape(row["why"]), shrinks=True))
    print_table(columns, answer["layers"])


def _amplification(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _times(value: float, unit: float) -> str:
    return f"{value / unit:.2f} x" if unit else "-"
