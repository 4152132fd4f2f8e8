"""The solvers of a mixed integer program (model.py): HiGHS, CBC and Gurobi, each with what it says of its proof.

A solver is imported when it is first called, since each takes long to load. None may report as optimal what it only
found: limits end a search, and then `SolverResult.optimal` is false.
"""

import math
import re
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.milp.model import IntegerProgram, SolverError, SolverLimits, SolverResult

if TYPE_CHECKING:
    import pulp


_MOST_NODES = (1 << 31) - 1  # that HiGHS can count


def solve_with_highs(model: IntegerProgram, limits: SolverLimits) -> SolverResult:
    """What HiGHS, which comes with SciPy, finds within the limits; SolverError: it refuses the program.

    It takes no start. A row that bounds the cost by that of the start is no way round: presolve then calls some
    programs infeasible that are not (SciPy 1.17, 4 of 80 small ones), and none was solved sooner.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    matrix = csr_array((model.values, model.index, model.starts), shape=(model.rows, model.columns))
    found = milp(
        model.cost,
        integrality=model.integer,
        bounds=Bounds(model.lower, model.upper),
        constraints=LinearConstraint(matrix, model.row_lower, model.row_upper),
        options={"mip_rel_gap": 0.0, "node_limit": min(limits.work, _MOST_NODES), "time_limit": limits.seconds},
    )
    if found.status not in (0, 1) and "limit reached" not in found.message:  # SciPy has no number for a limit of nodes
        raise SolverError(f"HiGHS refuses the program: {found.message}")
    values = None if found.x is None else found.x.tolist()
    bound = found.mip_dual_bound if any(model.integer) else found.fun
    return SolverResult(values, -math.inf if bound is None else float(bound), found.status == 0)


_BOUND = re.compile(r"^(Lower bound|Objective value): +(\S+)", re.MULTILINE)


def solve_with_cbc(model: IntegerProgram, limits: SolverLimits) -> SolverResult:
    """What CBC, which comes with PuLP, finds within the limits; SolverError: PuLP or CBC cannot be used."""
    try:
        import pulp
    except ImportError as error:
        raise SolverError(f"PuLP cannot be imported: {error}") from None
    # PuLP 3 warns at each variable that PuLP 4 will be different.
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="hpcdl-cbc-") as folder:
        warnings.simplefilter("ignore", DeprecationWarning)
        log = Path(folder) / "log"
        solver = pulp.PULP_CBC_CMD(
            msg=False,
            gapRel=0.0,
            gapAbs=1e-7,
            timeLimit=limits.seconds,
            maxNodes=limits.work,
            logPath=str(log),
            warmStart=True,
        )
        solver.tmpDir = folder
        problem, columns = _problem(model)
        for column, value in zip(columns, model.start, strict=True):
            column.setInitialValue(value)
        try:
            problem.solve(solver)
        except (pulp.PulpError, OSError) as error:
            raise SolverError(f"CBC does not run: {error}") from None
        # `status` is "Optimal" at a limit too, as soon as there is a solution.
        optimal = problem.sol_status == pulp.LpSolutionOptimal
        feasible = optimal or problem.sol_status == pulp.LpSolutionIntegerFeasible
        values = [float(column.varValue or 0.0) for column in columns] if feasible else None
        bound = _bound(log.read_text(errors="replace"), optimal)
    return SolverResult(values, bound, optimal)


def _problem(model: IntegerProgram) -> "tuple[pulp.LpProblem, list[pulp.LpVariable]]":
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


_TOO_LARGE = 10010  # GRB.Error.SIZE_LIMIT_EXCEEDED: the licence that gurobipy comes with


def solve_with_gurobi(model: IntegerProgram, limits: SolverLimits) -> SolverResult:
    """What Gurobi finds within the limits; SolverError: not installed, or its licence too small."""
    try:
        import gurobipy
    except ImportError as error:
        raise SolverError(f"gurobipy cannot be imported: {error}") from None
    try:
        return _solved(model, limits)
    except gurobipy.GurobiError as error:
        if error.errno == _TOO_LARGE:
            size = f"{model.columns:,} variables and {model.rows:,} constraints"
            raise SolverError(f"the licence of gurobipy is too small for {size}") from None
        raise SolverError(f"Gurobi ends with error {error.errno}: {error}") from None


def _solved(model: IntegerProgram, limits: SolverLimits) -> SolverResult:
    import gurobipy
    from gurobipy import GRB
    from scipy.sparse import csr_matrix

    quiet = {"OutputFlag": 0, "Threads": 1, "Seed": 0, "MIPGap": 0.0, "MIPGapAbs": 1e-7}
    quiet |= {"WorkLimit": float(limits.work), "TimeLimit": limits.seconds}
    with gurobipy.Env(params=quiet) as env, gurobipy.Model(env=env) as program:
        kinds = np.where(model.integer, GRB.INTEGER, GRB.CONTINUOUS)
        x = program.addMVar(
            model.columns, lb=np.array(model.lower), ub=np.array(model.upper), obj=np.array(model.cost), vtype=kinds
        )
        shape = (model.rows, model.columns)
        rows = csr_matrix((model.values, model.index, model.starts), shape=shape)
        low, high = np.array(model.row_lower), np.array(model.row_upper)
        for some, sense, side in (
            (low == high, "=", high),
            (np.isfinite(low) & (low != high), ">", low),
            (np.isfinite(high) & (low != high), "<", high),
        ):
            if some.any():
                program.addMConstr(rows[some], x, sense, side[some])
        every: list[gurobipy.Var] = x.tolist()
        for column, value in zip(every, model.start, strict=True):
            column.Start = value
        program.optimize()
        values = [each.X for each in every] if program.SolCount else None
        bound = program.ObjBound if program.IsMIP else program.ObjVal
        optimal = program.Status == GRB.OPTIMAL
        return SolverResult(values, bound if math.isfinite(bound) else -math.inf, optimal and values is not None)


NODE_SOLVERS = {"highs": solve_with_highs, "cbc": solve_with_cbc, "gurobi": solve_with_gurobi}
"""The solvers of the program over nodes, by the names that users give."""
