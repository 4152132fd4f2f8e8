"""HiGHS, by its own interface."""

import math
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.milp.model import Found, Limits, Model, SolverError

if TYPE_CHECKING:
    import highspy


def solve(model: Model, limits: Limits) -> Found:
    """What HiGHS finds within the limits; SolverError: it is not installed, or refuses the program."""
    try:
        import highspy
    except ImportError as error:
        raise SolverError(f"highspy cannot be imported: {error}") from None
    plain = model.with_binaries()
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-7),
        ("mip_max_nodes", limits.work),
        ("time_limit", limits.seconds),
    ):
        solver.setOptionValue(name, value)
    if solver.passModel(_program(plain)) == highspy.HighsStatus.kError:
        raise SolverError("HiGHS refuses the program")
    if solver.run() == highspy.HighsStatus.kError:
        raise SolverError(f"HiGHS ends with {solver.modelStatusToString(solver.getModelStatus())}")
    info = solver.getInfo()
    optimal = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    feasible = info.primal_solution_status == highspy.kSolutionStatusFeasible
    values = list(solver.getSolution().col_value)[: model.columns] if feasible else None
    bound = float(info.mip_dual_bound) if any(plain.integer) else float(info.objective_function_value)
    return Found(values, bound if math.isfinite(bound) else -math.inf, optimal and feasible)


def _program(model: Model) -> "highspy.HighsLp":
    import highspy

    program = highspy.HighsLp()
    program.num_col_ = model.columns
    program.num_row_ = model.rows
    program.sense_ = highspy.ObjSense.kMinimize
    program.col_cost_ = np.array(model.cost)
    program.col_lower_ = np.array(model.lower)
    program.col_upper_ = np.array(model.upper)
    program.row_lower_ = np.array(model.row_lower)
    program.row_upper_ = np.array(model.row_upper)
    matrix = program.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.num_col_ = model.columns
    matrix.num_row_ = model.rows
    matrix.start_ = np.array(model.starts, np.int32)
    matrix.index_ = np.array(model.index, np.int32)
    matrix.value_ = np.array(model.values)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    program.integrality_ = [kinds[whole] for whole in model.integer]
    return program
