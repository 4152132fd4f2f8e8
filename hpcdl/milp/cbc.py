"""CBC, the solver that PuLP brings along."""

import math
import re
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdl.milp.model import Found, Limits, Model, SolverError

if TYPE_CHECKING:
    import pulp

_BOUND = re.compile(r"^(Lower bound|Objective value): +(\S+)", re.MULTILINE)


def solve(model: Model, limits: Limits) -> Found:
    """What CBC finds within the limits; SolverError: PuLP is not installed, or CBC does not run."""
    try:
        import pulp
    except ImportError as error:
        raise SolverError(f"PuLP cannot be imported: {error}") from None
    plain = model.with_binaries()
    # PuLP 3 warns at each variable that PuLP 4 will be different.
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="hpcdl-cbc-") as folder:
        warnings.simplefilter("ignore", DeprecationWarning)
        log = Path(folder) / "log"
        solver = pulp.PULP_CBC_CMD(
            msg=False,
            gapRel=0.0,
            gapAbs=1e-7,
            threads=1,
            timeLimit=limits.seconds,
            maxNodes=limits.work,
            logPath=str(log),
        )
        solver.tmpDir = folder
        problem, columns = _problem(plain)
        try:
            problem.solve(solver)
        except (pulp.PulpError, OSError) as error:
            raise SolverError(f"CBC does not run: {error}") from None
        # `status` is "Optimal" at a limit too, as soon as there is a solution.
        optimal = problem.sol_status == pulp.LpSolutionOptimal
        feasible = optimal or problem.sol_status == pulp.LpSolutionIntegerFeasible
        values = [float(column.varValue or 0.0) for column in columns[: model.columns]] if feasible else None
        bound = _bound(log.read_text(errors="replace"), optimal)
    return Found(values, bound, optimal)


def _problem(model: Model) -> "tuple[pulp.LpProblem, list[pulp.LpVariable]]":
    import pulp

    def finite(bound: float) -> float | None:
        return bound if math.isfinite(bound) else None

    problem = pulp.LpProblem("nodes", pulp.LpMinimize)
    columns = [
        pulp.LpVariable(f"x{at}", finite(low), finite(high), pulp.LpInteger if whole else pulp.LpContinuous)
        for at, (low, high, whole) in enumerate(zip(model.lower, model.upper, model.integer, strict=True))
    ]
    problem.setObjective(pulp.LpAffineExpression(list(zip(columns, model.cost, strict=True))))
    for at in range(model.rows):
        start, end = model.starts[at], model.starts[at + 1]
        terms = [(columns[model.index[k]], model.values[k]) for k in range(start, end)]
        low, high = model.row_lower[at], model.row_upper[at]
        for sense, bound in (
            [(pulp.LpConstraintEQ, low)] if low == high else [(pulp.LpConstraintGE, low), (pulp.LpConstraintLE, high)]
        ):
            if math.isfinite(bound):
                row = pulp.LpConstraint(
                    pulp.LpAffineExpression(terms), sense, f"r{at}_{sense}".replace("-", "m"), bound
                )
                problem.addConstraint(row)
    return problem, columns


def _bound(log: str, optimal: bool) -> float:
    """The lower bound that CBC's log states, less what was rounded away; where it is optimal, that is the value."""
    said = dict(_BOUND.findall(log))
    text = said.get("Objective value" if optimal else "Lower bound", "")
    try:
        return float(text) - 10.0 ** -len(text.partition(".")[2])
    except ValueError:
        return -math.inf
