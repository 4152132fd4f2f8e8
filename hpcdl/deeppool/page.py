"""A burst-parallel plan as a page: its layers by width over time, and the GPU time that it leaves free."""

from collections.abc import Mapping

from hpcdl.deeppool.planner import BurstPlan, LayerPlan, data_parallel, uncounted
from hpcdl.deeppool.problem import BurstProblem
from hpcdl.report.html import HtmlTable, document, drawing, figure, html, legend, note, table_html, visible

_HEIGHT = 260
_LABELS = 60
_COLOURS = 10


def plan_page(problem: BurstProblem, plan: BurstPlan, title: str, reasons: Mapping[str, str] | None = None) -> str:
    """One self-contained HTML file. `reasons`: a line for each layer, why it has its width."""
    plain = data_parallel(problem)
    parts = [
        f"<h1>{html(title)}</h1>",
        note(_summary(problem, plan, plain), "figures"),
        note(_bounds(problem, plan)),
        figure("GPUs by layer over one iteration", "a colour for each width", _drawing(problem, plan)),
        _legend(plan),
        "<h2>Layers</h2>",
        _table(plan, reasons or {}),
    ]
    return document(visible(title, 200), parts, script=True)


def _summary(problem: BurstProblem, plan: BurstPlan, plain: BurstPlan) -> str:
    all_ms = problem.gpus * plan.time_ms
    free = 1 - plan.gpu_ms / all_ms if all_ms else 0.0
    return (
        f"An iteration of {problem.global_batch} samples takes {plan.time_ms:.4g} ms on up to {_gpus(problem.gpus)}, "
        f"and leaves {100 * free:.0f} % of their time free ({all_ms - plan.gpu_ms:.4g} of {all_ms:.4g} GPU-ms). Data "
        f"parallelism takes {plain.time_ms:.4g} ms, one GPU {plan.one_gpu_ms:.4g} ms."
    )


def _bounds(problem: BurstProblem, plan: BurstPlan) -> str:
    within = [
        *([f"each layer within {problem.limit:g} x its GPU-time on one GPU"] if problem.limit is not None else []),
        *([f"the iteration within {problem.budget:g} x that of one GPU"] if problem.budget is not None else []),
    ]
    lanes = "; moves between their GPUs are not counted" if uncounted(problem) else ""
    proof = "No plan is faster" if plan.optimal else f"No plan takes less than {plan.bound_ms:.4g} ms"
    return f"{proof}{', with ' + ' and '.join(within) if within else ''}; branches in {problem.branches}{lanes}."


def _colour(gpus: int) -> str:
    return f"c{(gpus.bit_length() - 1) % _COLOURS}"


def _drawing(problem: BurstProblem, plan: BurstPlan) -> str:
    row = _HEIGHT / problem.gpus
    ticks = sorted({0, *(1 << power for power in range(problem.gpus.bit_length())), problem.gpus})
    labels, last = [], float("inf")
    for gpus in ticks:
        y = _HEIGHT + 8 - row * gpus
        if last - y >= 13:
            labels.append(f'<text x="{_LABELS - 8}" y="{y + 4:.1f}" class="row">{gpus}</text>')
            last = y
    drawn = [f'<rect x="0" y="8" width="100%" height="{_HEIGHT}" class="lane"/>']
    drawn += [_rectangle(layer, plan.time_ms, row) for layer in plan.layers]
    for part in range(5):
        x = 25 * part
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        drawn.append(f'<text x="{x}%" y="{_HEIGHT + 24}" class="tick" text-anchor="{anchor}">')
        drawn.append(f"{plan.time_ms * part / 4:.3g} ms</text>")
    title = f"{len(plan.layers)} layers over {plan.time_ms:.4g} ms on {_gpus(problem.gpus)}"
    return drawing("".join(labels), "".join(drawn), width=_LABELS, height=_HEIGHT + 30, title=title)


def _rectangle(layer: LayerPlan, time_ms: float, row: float) -> str:
    if time_ms <= 0:
        return ""
    x, wide = 100 * layer.start_ms / time_ms, 100 * layer.time_ms / time_ms
    y = 8 + _HEIGHT - row * (layer.first_gpu + layer.gpus)
    told = f"{layer.name}: {_gpus(layer.gpus)}, {layer.time_ms:.3g} ms from {layer.start_ms:.4g} ms on"
    return (
        f'<g class="{_colour(layer.gpus)}"><rect x="{x:.4f}%" y="{y:.2f}" width="{wide:.4f}%" '
        f'height="{row * layer.gpus:.2f}" class="fill" stroke="var(--page)" stroke-width="0.5">'
        f"<title>{html(told, 300)}</title></rect></g>"
    )


def _gpus(many: int) -> str:
    return f"{many} GPU" if many == 1 else f"{many} GPUs"


def _legend(plan: BurstPlan) -> str:
    full = '<rect width="26" height="12" class="fill"/>'
    free = '<rect width="26" height="12" class="lane" stroke="var(--line)"/>'
    widths = sorted({layer.gpus for layer in plan.layers})
    shown = widths if len(widths) <= 2 * _COLOURS else [*widths[:_COLOURS], *widths[-_COLOURS:]]
    return legend([("", free, "free"), *((_colour(each), full, _gpus(each)) for each in shown)], height=12)


def _table(plan: BurstPlan, reasons: Mapping[str, str]) -> str:
    header = ("Layer", "GPUs", "From GPU", "Start, ms", "Time, ms", "Amplification", "", *(["Why"] if reasons else []))
    rows = tuple(
        (
            visible(layer.name, 80),
            str(layer.gpus),
            str(layer.first_gpu),
            f"{layer.start_ms:.3f}",
            f"{layer.time_ms:.3f}",
            "–" if layer.amplification is None else f"{layer.amplification:.2f}",
            "extrapolated" if layer.extrapolated else "",
            *([visible(reasons[layer.name], 400)] if reasons else []),
        )
        for layer in plan.layers
    )
    return table_html(HtmlTable("", header, rows, frozenset(range(1, 6))))
