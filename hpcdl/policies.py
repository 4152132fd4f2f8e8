"""Every policy that there is, by name: for the daemon, the simulator and `hpcdl config policy`.

Packages list theirs (`POLICIES`); a user's own files in `HPCDL_HOME` are added last and may not take a name again.
"""

from functools import partial
from pathlib import Path

from hpcdl import adaptive, baselines, genie, marble, sidecar
from hpcdl.config.policy_files import register_files
from hpcdl.core.model.plan import Policies
from hpcdl.deeppool.policy import DeepPool
from hpcdl.genie.model import THETA
from hpcdl.harvest import Harvest
from hpcdl.milp import BFTrainer, EqualShare, Reallocation
from hpcdl.milp.counting import Counting


def all_policies(
    reallocation: Reallocation | None = None,
    home: Path | None = None,
    counting: Counting | None = None,
    theta: float = THETA,
) -> Policies:
    """A registry with all of them, and with those of one's own in `home`; raises as `register_files` does.

    `reallocation`: what is set of those that spread trainers over nodes; `counting`: a solver of mixed integer programs
    for those that optimise it, which may take seconds (`Policy.deliberate`); `theta`: of those that know GENIE's cost.
    """
    policies = Policies()
    for package in (adaptive, baselines, sidecar, marble):
        policies.add(*package.POLICIES)
    policies.add(*(policy for policy in genie.POLICIES if policy not in genie.WITH_COST))
    for policy in genie.WITH_COST:
        policies.register(policy.name, partial(policy, theta))
    policies.add(DeepPool)
    policies.register(EqualShare.name, partial(EqualShare, reallocation))
    for spread in (BFTrainer, Harvest):
        policies.register(spread.name, partial(spread, reallocation, counting))
    if home is not None:
        register_files(policies, home)
    return policies


__all__ = ["Reallocation", "all_policies"]
