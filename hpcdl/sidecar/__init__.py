"""SideCar (SC 2020): Algorithms 1 and 2, and the baselines that it is measured against."""

from hpcdl.core.model.plan import Policies
from hpcdl.sidecar.baselines import K8sDefault, Optimus
from hpcdl.sidecar.policy import SideCar


def register(policies: Policies) -> None:
    """Adds `elastic`, `k8s-default` and `optimus`."""
    policies.register(SideCar.name, SideCar)
    policies.register(K8sDefault.name, K8sDefault)
    policies.register(Optimus.name, Optimus)


__all__ = ["K8sDefault", "Optimus", "SideCar", "register"]
