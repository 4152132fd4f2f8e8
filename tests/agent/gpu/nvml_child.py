"""Asks an NvmlSource in a process of its own, once for each phase: a state file of the fake NVML, put in its place.

argv: the state file that the fake reads, then one file for each phase. Prints one JSON value.
"""

import dataclasses
import json
import shutil
import sys

from hpcdl.agent.gpu.device import GpuSourceError
from hpcdl.agent.gpu.nvml import NvmlSource

state, phases = sys.argv[1], sys.argv[2:]
shutil.copy(phases[0], state)
try:
    source = NvmlSource()
except GpuSourceError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit(0)
said = []
for phase in phases:
    shutil.copy(phase, state)
    samples = [dataclasses.asdict(sample) for sample in source.sample()]
    said.append(
        {"gpus": [dataclasses.asdict(gpu) for gpu in source.list()], "samples": samples, "detail": source.detail}
    )
source.close()
print(json.dumps({"phases": said}))
