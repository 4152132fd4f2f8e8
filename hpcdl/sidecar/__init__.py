"""SideCar (SC 2020): Algorithms 1 and 2 (the policy `elastic`), and the baselines that it is measured against.

predict.py holds the paper's prediction (section III-C), policy.py the algorithms that minimise it, letter.py the same
to the letter (`elastic-letter`).
"""

from hpcdl.sidecar.baselines import K8sDefault, Optimus
from hpcdl.sidecar.letter import SideCarLetter
from hpcdl.sidecar.policy import SideCar

POLICIES = (SideCar, SideCarLetter, K8sDefault, Optimus)

__all__ = ["POLICIES", "K8sDefault", "Optimus", "SideCar", "SideCarLetter"]
