"""The GPUs of this node: which there are, what they do, and which processes hold them.

Three sources give the same answers: NVML, `nvidia-smi` where NVML cannot be loaded, and emulated GPUs for machines
that have none. A source is asked from one thread at a time, and an answer may take seconds when a driver is ill.
"""
