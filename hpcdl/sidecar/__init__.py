"""SideCar (SC 2020): Algorithms 1 and 2 (the policy `elastic`), and the baselines that it is measured against.

predict.py holds the paper's prediction (section III-C), policy.py the algorithms that minimise it.
"""

from hpcdl.sidecar.baselines import K8sDefault, Optimus
from hpcdl.sidecar.policy import SideCar

POLICIES = (SideCar, K8sDefault, Optimus)

__all__ = ["POLICIES", "K8sDefault", "Optimus", "SideCar"]
