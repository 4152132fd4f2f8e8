"""Replays of idle traces as in section 5 of the BFTrainer paper, with the daemon's own Controller."""

from hpcdl.sim.replay.case import Case
from hpcdl.sim.replay.idle import Idle, idle_of, read_idle
from hpcdl.sim.replay.models import Model, chosen, read_models, table2
from hpcdl.sim.replay.outcome import Outcome
from hpcdl.sim.replay.replayed import replayed

__all__ = ["Case", "Idle", "Model", "Outcome", "chosen", "idle_of", "read_idle", "read_models", "replayed", "table2"]
