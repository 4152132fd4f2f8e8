"""SideCar (SC 2020): Algorithms 1 and 2, and the baselines that it is measured against."""

from hpcdl.core.policy import Policies
from hpcdl.elastic.baselines import K8sDefault, Optimus
from hpcdl.elastic.sidecar import Elastic


def register(policies: Policies) -> None:
    """Adds `elastic`, `k8s-default` and `optimus`."""
    policies.register(Elastic.name, Elastic)
    policies.register(K8sDefault.name, K8sDefault)
    policies.register(Optimus.name, Optimus)


__all__ = ["Elastic", "K8sDefault", "Optimus", "register"]
