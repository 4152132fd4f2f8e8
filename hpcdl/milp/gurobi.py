"""Gurobi, by gurobipy, with its own SOS2."""

import math

import numpy as np

from hpcdl.milp.model import Found, Limits, Model, SolverError

_TOO_LARGE = 10010  # GRB.Error.SIZE_LIMIT_EXCEEDED: the licence that gurobipy comes with


def solve(model: Model, limits: Limits) -> Found:
    """What Gurobi finds within the limits; SolverError: it is not installed, or its licence does not allow it."""
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


def _solved(model: Model, limits: Limits) -> Found:
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
        for columns in model.sos2:
            program.addSOS(GRB.SOS_TYPE2, [every[column] for column in columns])
        program.optimize()
        values = [each.X for each in every] if program.SolCount else None
        bound = program.ObjBound if program.IsMIP else program.ObjVal
        optimal = program.Status == GRB.OPTIMAL
        return Found(values, bound if math.isfinite(bound) else -math.inf, optimal and values is not None)
