"""Replays of idle traces as in section 5 of the BFTrainer paper, with the daemon's own Controller."""

from hpcdl.sim.replay.case import ReplayCase, ScalingModel, chosen, read_models, table2
from hpcdl.sim.replay.idle import IdleTrace, idle_of, read_idle
from hpcdl.sim.replay.outcome import Outcome, replayed

__all__ = [
    "IdleTrace",
    "Outcome",
    "ReplayCase",
    "ScalingModel",
    "chosen",
    "idle_of",
    "read_idle",
    "read_models",
    "replayed",
    "table2",
]
