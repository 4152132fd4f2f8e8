"""The solvers of a mixed integer program (model.py): HiGHS, CBC and Gurobi, each with what it says of its proof.

A solver is imported when it is first called, since each takes long to load. None may report as optimal what it only
found: limits end a search, and then `SolverResult.optimal` is false.
"""

import math
import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from hpcdl.milp.model import IntegerProgram, SolverError, SolverLimits, SolverResult
from hpcdl.wire.child import dies_with

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
    """What CBC, which comes with PuLP, finds within the limits; SolverError: PuLP or CBC cannot be used.

    PuLP is asked for the program's place only: it would start CBC so that it outlives this process.
    """
    try:
        import pulp
    except ImportError as error:
        raise SolverError(f"PuLP cannot be imported: {error}") from None
    with tempfile.TemporaryDirectory(prefix="hpcdl-cbc-") as folder:
        places = {name: Path(folder) / name for name in ("program.mps", "start", "answer")}
        places["program.mps"].write_text(mps_text(model))
        start = "".join(f"{at} x{at} {value!r}\n" for at, value in enumerate(model.start))
        places["start"].write_text(f"start\n{start}")
        options = {"mips": "start", "sec": limits.seconds, "timeMode": "elapsed", "ratio": 0, "allow": 1e-7}
        options["maxNodes"] = min(limits.work, _MOST_NODES)
        argv = [pulp.PULP_CBC_CMD.pulp_cbc_path, "program.mps"]
        argv += [text for name, value in options.items() for text in (f"-{name}", str(value))]
        argv += ["-solve", "-solution", "answer"]
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                preexec_fn=dies_with(os.getpid()),
                check=True,
            )
            answer = places["answer"].read_text()
        except (OSError, subprocess.SubprocessError) as error:
            raise SolverError(f"CBC does not run: {error}") from None
    status, _, rows = answer.partition("\n")
    optimal = status.startswith("Optimal")
    if "objective value" not in status or "nfeasible" in status or "no integer solution" in status:
        optimal, values = False, None
    else:
        values = [0.0] * model.columns
        for row in rows.splitlines():  # those that are not 0: number, name, value, reduced cost
            _, name, value, *_ = row.replace("**", "").split()
            values[int(name[1:])] = float(value)
    return SolverResult(values, _bound(done.stdout.decode(errors="replace"), optimal), optimal)


def mps_text(model: IntegerProgram) -> str:
    """The program as MPS, in which column i is `xi`, row i `ri`. CBC wants these names of right sides, bounds."""
    columns: list[list[str]] = [[f" x{at} cost {cost!r}"] for at, cost in enumerate(model.cost)]
    kinds, sides, ranges = [], [], []
    for row, (low, high) in enumerate(zip(model.row_lower, model.row_upper, strict=True)):
        kind, side = ("E", low) if low == high else ("L", high) if low == -math.inf else ("G", low)
        kinds.append(f" {kind} r{row}")
        sides.append(f" RHS r{row} {side!r}")
        if kind == "G" and high < math.inf:
            ranges.append(f" RNG r{row} {high - low!r}")
        for at in range(model.starts[row], model.starts[row + 1]):
            columns[model.index[at]].append(f" x{model.index[at]} r{row} {model.values[at]!r}")
    texts = ["NAME nodes", "ROWS", " N cost", *kinds, "COLUMNS"]
    for whole, mark in ((False, ""), (True, "INTORG")):
        some = [text for its, integer in zip(columns, model.integer, strict=True) if integer is whole for text in its]
        texts += [f" MARK 'MARKER' '{mark}'", *some, " MARK 'MARKER' 'INTEND'"] if mark else some
    texts += ["RHS", *sides, "RANGES", *ranges, "BOUNDS"]
    for at, bounds in enumerate(zip(model.lower, model.upper, strict=True)):
        texts += [f" {kind} BND x{at} {bound!r}" for kind, bound in zip(("LO", "UP"), bounds, strict=True)]
    return "\n".join([*texts, "ENDATA", ""])


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
