"""Fits of what jobs show: how they scale (online), how fast GENIE's model says they are, and when they will be done."""

from hpcdl.learning.convergence import predict_steps
from hpcdl.learning.latency import LatencyModel, LightRun, Setting, fit, plan_light_runs
from hpcdl.learning.scaling import Curve, fit_curve, learner

__all__ = [
    "Curve",
    "LatencyModel",
    "LightRun",
    "Setting",
    "fit",
    "fit_curve",
    "learner",
    "plan_light_runs",
    "predict_steps",
]
