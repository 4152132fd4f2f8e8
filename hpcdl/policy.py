"""All that a policy is written with, in one place that stays stable: `from hpcdl.policy import Plan, View, pool_of`.

What it sees (`View`, `JobView`, `NodeView`, `Profile`), what it answers (`Plan` of `Target`s), how it is registered
(`Policies`) and checked (`check`), GPUs on nodes (`Pool` and what makes one), exact optimisation over numbers of GPUs
(`solve`), and words for reasons. Names are only added here; docs/policy-guide.md says what each is for. Nothing is
defined here, and hpcdl itself imports each from where it is defined.
"""

from hpcdl.core.model.incarnation import Placement, Role, Share
from hpcdl.core.model.plan import BadPlan, JobView, NodeView, Plan, Policies, Policy, Standing, View, check
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import count, fold_nodes, seconds_text
from hpcdl.core.model.world import Target
from hpcdl.placement.pool import Pool, impossible, lean_pool_of, most_free, pool_of, role_reason, waiting
from hpcdl.placement.shapes import packed
from hpcdl.solver import Item, Solution, solve

__all__ = [
    "BadPlan",
    "Item",
    "JobView",
    "NodeView",
    "Placement",
    "Plan",
    "Policies",
    "Policy",
    "Pool",
    "Profile",
    "Role",
    "Share",
    "Solution",
    "Standing",
    "Target",
    "View",
    "check",
    "count",
    "fold_nodes",
    "impossible",
    "lean_pool_of",
    "most_free",
    "packed",
    "pool_of",
    "role_reason",
    "seconds_text",
    "solve",
    "waiting",
]
