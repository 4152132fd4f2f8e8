"""Fits of what jobs show: how they scale (online), how fast GENIE's model says they are, and when they will be done.

Pure functions of observations; what is learnt is kept by the daemon (daemon/learner.py), never here.
"""

from hpcdl.estimators.convergence import predict_steps
from hpcdl.estimators.latency import LatencyModel, LightRun, Setting, fit, plan_light_runs
from hpcdl.estimators.scaling import ScalingCurve, fit_curve, learner

__all__ = [
    "LatencyModel",
    "LightRun",
    "ScalingCurve",
    "Setting",
    "fit",
    "fit_curve",
    "learner",
    "plan_light_runs",
    "predict_steps",
]
