"""Who may decide how many nodes each trainer has under `bftrainer` and `harvest`: the setting `milp_solver`."""

MILP_SOLVERS = ("exact", "counts-highs", "highs", "cbc", "gurobi")
"""`exact`, and the solvers of a mixed integer program (hpcdl/milp)."""
