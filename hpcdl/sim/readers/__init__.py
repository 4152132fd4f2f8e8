"""Files into values: workloads, idle traces, throughput tables. docs/simulate.md describes every format."""

from hpcdl.sim.readers.costs import Costs
from hpcdl.sim.readers.idle import read_idle_record, read_idle_trace
from hpcdl.sim.readers.reader import READERS, read_workload
from hpcdl.sim.readers.throughput import read_throughputs

__all__ = ["READERS", "Costs", "read_idle_record", "read_idle_trace", "read_throughputs", "read_workload"]
