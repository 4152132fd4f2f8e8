"""`hpcdl burst compare` and `hpcdl burst scaling`: what a plan gains, predicted from measured layers.

They print what `hpcdl.deeppool` computes of a problem; nothing is measured or started.
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.burst.document import BATCH, GPUS, PROBLEM, read_with
from hpcdl.cli.output import Column, Output, outputs_as, print_fields, print_table, value_column
from hpcdl.cli.params import Finite
from hpcdl.core.model.units import count

if TYPE_CHECKING:
    from hpcdl.deeppool.scaling import ScalingPoint

_POSITIVE = Finite(min=0, max=1e12, min_open=True)


def _numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
    """Numbers above 0 like `1.2,2,4`."""
    return tuple(_POSITIVE.convert(part.strip(), param, ctx) for part in value.split(","))


@click.command(short_help="Compare plans with data parallelism and partitions.")
@PROBLEM
@GPUS
@BATCH
@click.option("--limits", callback=_numbers, default="1.1,1.2,1.5,2,3,4", show_default=True, metavar="A,..",
              help="Limits of burst-parallel plans; one without a limit comes too.")  # fmt: skip
@click.option("--background-batch", type=click.IntRange(min=1), metavar="N",
              help="Samples at a time of a background job.  [default: the global batch]")  # fmt: skip
@outputs_as("The total samples a second only, one a line.")
def compare(
    ctx: click.Context, /, output: Output, problem: str, gpus: int | None, batch: int | None, **options: Any
) -> None:
    """Compare burst-parallel plans with data parallelism and a cluster that is split for good (figures 9 and 10).

    Background jobs are the same model on one GPU each; they run at full speed on GPUs while the plan leaves them free.

    hpcdl burst compare vgg16
    """
    from hpcdl.deeppool.baselines import gain_over_one_partition, gain_over_partition, operating_points
    from hpcdl.deeppool.planner import uncounted

    case = read_with(problem, gpus=gpus, global_batch=batch)
    batch_size = options["background_batch"] or case.global_batch
    points = operating_points(case, (*options["limits"], None), batch_size)
    gain, single, plain = gain_over_partition(points), gain_over_one_partition(points), points[0]
    rows = [{**asdict(point), "vs_data_parallel": _ratio(point.total_per_s, plain.total_per_s)} for point in points]
    value = {
        "predicted": True,
        "gpus": case.gpus,
        "global_batch": case.global_batch,
        "background_batch": batch_size,
        "points": rows,
        "speedup_over_partition": gain,
        "speedup_over_one_partition": single,
        **uncounted(case),
    }
    if output.print_data(value, [f"{point.total_per_s:g}" for point in points]):
        return
    print_table(
        [
            Column("HOW", lambda row: row["kind"]),
            Column("SETTING", lambda row: row["setting"]),
            _number("MS", "time_ms"),
            _number("SPEEDUP", "speedup"),
            _number("FREE GPUS", "free_gpus"),
            _number("FOREGROUND/S", "foreground_per_s"),
            _number("TOTAL/S", "total_per_s"),
            _number("VS DATA PARALLEL", "vs_data_parallel"),
        ],
        rows,
    )
    print()
    best = "-" if gain is None else f"{100 * gain:+.0f} % speedup at the same total throughput, at the best limit"
    least = "-" if single is None else f"{100 * single:+.0f} % over the fastest one with at least that throughput"
    fields = [("against partitions", best), ("against one of them", least)]
    print_fields([*fields, ("predicted", "background jobs at full speed on GPUs that are free")])


@click.command(short_help="Predict weak, strong and batch-optimal scaling.")
@PROBLEM
@click.option("--gpus", type=click.IntRange(1, 1 << 14), default=256, show_default=True, metavar="N",
              help="1, 2, 4 ... up to so many GPUs.")  # fmt: skip
@click.option("--batch", type=click.IntRange(min=1), default=256, show_default=True, metavar="N",
              help="The global batch on one GPU, and of strong scaling.")  # fmt: skip
@click.option("--critical-batch", type=_POSITIVE, default=2048, show_default=True, metavar="N",
              help="The global batch that takes twice the fewest iterations.")  # fmt: skip
@click.option("--gbps", callback=_numbers, default="10,100,1000,4800", show_default=True, metavar="G,..",
              help="Networks to compare on N GPUs, in Gbit/s.")  # fmt: skip
@outputs_as("The batch-optimal speedups only, one a line.")
def scaling(
    ctx: click.Context, /, output: Output, problem: str, gpus: int, batch: int, critical_batch: float, **options: Any
) -> None:
    """Predict how much sooner more GPUs train to a given error (figures 1 to 3).

    Weak scaling gives each GPU the whole batch, strong scaling divides it, batch-optimal scaling takes the best global
    batch; `burst` is that one with burst-parallel plans. Iterations needed: S (1 + critical batch / global batch).

    hpcdl burst scaling vgg16 --gpus 256
    """
    from hpcdl.deeppool.scaling import scaling_by_gpus, scaling_by_network

    case = read_with(problem, global_batch=batch)
    by_gpus = scaling_by_gpus(case, gpus, critical_batch)
    speeds = [each * 1e9 / 8 for each in options["gbps"]]
    by_network = scaling_by_network(case, by_gpus[-1].gpus, critical_batch, speeds)
    value = {
        "predicted": True,
        "critical_batch": critical_batch,
        "by_gpus": [asdict(point) for point in by_gpus],
        "by_network": [asdict(point) for point in by_network],
    }
    if output.print_data(value, [f"{point.batch_optimal:g}" for point in by_gpus]):
        return
    _print_speedups(by_gpus, Column("GPUS", lambda row: str(row["gpus"]), right=True))
    print(f"\non {count(by_gpus[-1].gpus, 'GPU')} by network")
    _print_speedups(by_network, Column("GBIT/S", lambda row: f"{8e-9 * row['bytes_per_s']:g}", right=True))


def _print_speedups(points: "tuple[ScalingPoint, ...]", first: Column) -> None:
    columns = [_number(key.replace("_", " ").upper(), key) for key in ("weak", "strong", "batch_optimal", "burst")]
    print_table([first, *columns, _number("SAMPLES/GPU", "samples_per_gpu")], [asdict(point) for point in points])


def _number(title: str, key: str) -> Column:
    return value_column(title, key, lambda value: f"{value:.0f}" if value >= 1000 else f"{value:.3g}", right=True)


def _ratio(value: float, unit: float) -> float | None:
    return value / unit if unit else None
