"""The trainer's environment: what the job asked for over a small base of the agent's own, and the HPCDL_* variables."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdl.core.arrays import variables
from hpcdl.core.model import JobSpec

BASE = frozenset([
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LIBRARY_PATH",
    "PYTHONPATH", "VIRTUAL_ENV", "PYTHONHASHSEED", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MODULEPATH",
    "LOADEDMODULES", "MODULESHOME", "LMOD_CMD", "KRB5CCNAME", "SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
])  # fmt: skip
"""Variables of the agent that its trainers get; what else a job needs it names itself."""
BASE_PREFIXES = ("LC_", "CONDA_", "NCCL_", "GLOO_", "UCX_")

# With these a framework takes itself for a batch step: it would requeue itself, or wait for ranks that nobody starts.
# And every HPCDL_ variable is ours to set: the agent's own may name another job.
SCRUBBED = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|LSB|LSF|LS_|PMI|PMIX|OMPI|PRTE|HPCDL)_?.*")
_KEPT = re.compile(r"LSF_(BINDIR|LIBDIR|SERVERDIR|ENVDIR)|HPCDL_PROFILE_BATCH")  # the latter: hpcdl profile run

STUBS = str(Path(__file__).with_name("stubs"))
"""The folder of commands that refuse what would leave the job's GPUs, such as srun."""


def trainer_environment(
    agent: Mapping[str, str],
    spec: JobSpec,
    *,
    job: int,
    incarnation: int,
    membership: int,
    node: str,
    checkpoint_dir: str | None,
    address: str,
    allocation: str = "",
) -> dict[str, str]:
    """All but the GPUs, the tag and the socket, which the supervisor adds. `address`: this node's IP for its peers.

    `allocation`: the batch job that this node is in; in one, signals of the batch system come to trainers as well."""
    kept = {name: value for name, value in agent.items() if name in BASE or name.startswith(BASE_PREFIXES)}
    kept.update(spec.env)
    found = {name: value for name, value in kept.items() if not scrubbed(name)}
    found["PATH"] = with_stubs(found.get("PATH") or os.defpath)
    found["HPCDL_JOB"] = str(job)
    found["HPCDL_JOB_NAME"] = spec.name
    found["HPCDL_INCARNATION"] = str(incarnation)
    found["HPCDL_MEMBERSHIP"] = str(membership)
    found["HPCDL_NODE"] = node
    found["HPCDL_GRACE_S"] = f"{spec.grace_s:g}"
    found["HPCDL_SIGNAL"] = spec.signal
    found["HPCDL_RESCALE"] = spec.rescale
    found["HPCDL_ADDRESS"] = address
    found.update(variables(spec))
    if allocation:
        found["HPCDL_ALLOCATION"] = allocation
    if checkpoint_dir:
        found["HPCDL_CHECKPOINT_DIR"] = checkpoint_dir
    if spec.steps is not None:
        found["HPCDL_STEPS"] = str(spec.steps)
    return found


def with_stubs(path: str) -> str:
    """The PATH with hpcdl's stubs first, and only there."""
    return os.pathsep.join([STUBS, *(each for each in path.split(os.pathsep) if each != STUBS)])


def scrubbed(name: str) -> bool:
    """Whether a variable of that name is kept from trainers."""
    return SCRUBBED.fullmatch(name) is not None and _KEPT.fullmatch(name) is None


def nodes_environment(nodes: Sequence[str], node: str) -> dict[str, str]:
    """What ranks find each other by; `nodes` in the placement's order, whose first has the writer."""
    return {"HPCDL_NODES": ",".join(nodes), "HPCDL_NODE_RANK": str(list(nodes).index(node))}


def gpu_environment(uuids: Sequence[str], visible: str) -> dict[str, str]:
    """The grant. `visible`: CUDA_VISIBLE_DEVICES for it, by UUID."""
    return {"CUDA_VISIBLE_DEVICES": visible, "HPCDL_GPUS": ",".join(uuids), "HPCDL_GPU_COUNT": str(len(uuids))}
