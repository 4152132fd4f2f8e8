"""`hpcdl allocate`: nodes for elastic trainers, by BFTrainer's optimisation, for a problem in a JSON file.

Needs no daemon and changes nothing. The model and the solvers are in hpcdl/milp and hpcdl/solver.
"""

import sys
import time
from pathlib import Path
from typing import Any

import click

from hpcdl.cli.output import Column, Output, escape, outputs_as, print_fields, print_table, say
from hpcdl.cli.params import InputFile, OneOf, Seconds

SOLVERS = ("exact", "dp", "counts-highs", "highs", "cbc", "gurobi")  # as hpcdl.milp.solving has them


@click.command()
@click.argument("problem", type=InputFile(allow_dash=True))
@click.option(
    "--solver", type=OneOf(SOLVERS), default="exact", show_default=True,
    help="The first three solve over numbers of nodes, the others over each node.",
)  # fmt: skip
@click.option(
    "--work", type=click.IntRange(min=0), default=100_000, show_default=True, metavar="N",
    help="For highs, cbc, gurobi: nodes of branch and bound (gurobi: its units of work).",
)  # fmt: skip
@click.option(
    "--seconds", type=Seconds(0, 1_000_000, min_open=True), default=3600, show_default=True, metavar="SECONDS",
    help="For highs, cbc, gurobi: stop after that, in any case.",
)  # fmt: skip
@outputs_as("Trainers that get nodes only, one a line.")
def allocate(ctx: click.Context, output: Output, problem: Path, solver: str, work: int, seconds: float) -> None:
    """Give nodes to elastic trainers by BFTrainer's optimisation. PROBLEM is a JSON file, or - for stdin.

    hpcdl allocate problem.json --json
    """
    from hpcdl.milp.answer import nodes_of, reasons
    from hpcdl.milp.model import SolverLimits
    from hpcdl.milp.problem import ProblemError, read
    from hpcdl.milp.solve import load, solve

    text = _text(problem)
    try:
        asked = read(text)
        load(solver)
        begun = time.perf_counter()
        answer = solve(asked, solver, SolverLimits(work, seconds))
        spent = time.perf_counter() - begun
    except ProblemError as error:
        raise click.ClickException(f"{_name(problem)}: {error}") from None
    except ValueError as error:
        raise click.ClickException(f"{_name(problem)} cannot be solved: {error}") from None
    except MemoryError:
        raise click.ClickException(f"{_name(problem)} cannot be solved: it needs too much memory") from None
    for line in answer.warnings:
        say(line)
    found = answer.allotment
    given = nodes_of(asked, found)
    why = reasons(asked, found)
    result: dict[str, Any] = {
        "solver": found.solver,
        "optimal": found.optimal,
        "objective": found.value,
        "bound": found.bound,
        "seconds": spent,
        "allocation": dict(zip(asked.ids, given, strict=True)),
    }
    if asked.grouped:
        pairs = zip(asked.ids, found.groups, strict=True)
        result["groups"] = {name: asked.groups[at].name for name, at in pairs if at is not None}
    result["why"] = dict(zip(asked.ids, why, strict=True))
    if not output.print_data(result, [name for name, nodes in zip(asked.ids, found.counts, strict=True) if nodes]):
        before = [trainer.now for trainer in asked.trainers]
        _show(
            result, [dict(zip(("now", "nodes"), each, strict=True)) for each in zip(before, found.counts, strict=True)]
        )


def _show(result: dict[str, Any], numbers: list[dict[str, int]]) -> None:
    from hpcdl.core.model.units import fold_nodes

    proof = "optimal" if result["optimal"] else f"no allocation is worth more than {result['bound']:.6g}"
    print_fields(
        [
            ("objective", f"{result['objective']:.6g}, {proof}"),
            ("solver", f"{result['solver']}, {1000 * result['seconds']:.3g} ms"),
        ]
    )
    groups = result.get("groups")
    rows = [
        {"id": name, "given": given, "why": result["why"][name], "group": (groups or {}).get(name, ""), **number}
        for (name, given), number in zip(result["allocation"].items(), numbers, strict=True)
    ]
    columns = [
        Column("TRAINER", lambda row: row["id"]),
        Column("HAS", lambda row: str(row["now"]), right=True),
        Column("GETS", lambda row: str(row["nodes"]), right=True),
    ]
    if groups is not None:
        columns.append(Column("GROUP", lambda row: row["group"] or "-"))
    if any(not isinstance(row["given"], int) for row in rows):
        columns.append(
            Column(
                "NODES",
                lambda row: "-" if isinstance(row["given"], int) else fold_nodes(row["given"]) or "-",
                shrinks=True,
            )
        )
    columns.append(Column("WHY", lambda row: row["why"], shrinks=True))
    print()
    print_table(columns, rows)


def _name(problem: Path) -> str:
    return "stdin" if str(problem) == "-" else escape(str(problem))


def _text(problem: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(problem) == "-" else problem.read_bytes()
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{_name(problem)} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise click.ClickException(f"{_name(problem)}: {error.strerror or error}") from None
