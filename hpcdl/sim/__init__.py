"""The simulator: the daemon's own Controller on a virtual clock, with modelled trainers."""

from hpcdl.sim.conditions import Conditions, SimulatedRun
from hpcdl.sim.engine import simulate
from hpcdl.sim.results import Results, summarise
from hpcdl.sim.workload import NodeSpell, SimJob, Workload, WorkloadError, cluster

__all__ = [
    "Conditions",
    "NodeSpell",
    "Results",
    "SimJob",
    "SimulatedRun",
    "Workload",
    "WorkloadError",
    "cluster",
    "simulate",
    "summarise",
]
