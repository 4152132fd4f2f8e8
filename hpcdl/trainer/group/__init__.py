"""The ranks of a job as one group: who belongs to it, how it forms anew in place, and the step at which all stop.

What scripts import is one folder up: `elastic`, `horovod_elastic`, `ranks` and the loops of each framework.
"""
