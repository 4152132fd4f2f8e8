"""Every policy that there is, by name: for the daemon, the simulator and `hpcdl config policy`."""

from hpcdl import adaptive, baselines, elastic, genie, harvest, marble, milp
from hpcdl.core.policy import Policies
from hpcdl.milp import Reallocation


def all_policies(reallocation: Reallocation | None = None) -> Policies:
    """A registry with all of them. `reallocation`: what is set of those that spread trainers over nodes."""
    policies = Policies()
    for package in (adaptive, baselines, elastic, genie, marble):
        package.register(policies)
    milp.register(policies, reallocation)
    harvest.register(policies, reallocation)
    return policies


__all__ = ["Reallocation", "all_policies"]
