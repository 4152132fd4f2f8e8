"""Every policy that there is, by name: for the daemon, the simulator and `hpcdl config policy`."""

from hpcdl import adaptive, baselines, elastic, genie, marble
from hpcdl.core.policy import Policies


def all_policies() -> Policies:
    """A registry with all of them."""
    policies = Policies()
    for package in (adaptive, baselines, elastic, genie, marble):
        package.register(policies)
    return policies
