"""From the daemon's request to start to start.json: the command, the environment, the number of threads, torchrun.

What the daemon asks for and this node cannot do is a StartRefusal, before anything runs. The file itself is in
supervisor/start_file.py.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from hpcdl.agent.context import AgentContext, tag_of
from hpcdl.agent.library import with_library
from hpcdl.agent.rendezvous import group_environment
from hpcdl.agent.steps.layout import filled
from hpcdl.agent.supervisor.packets import RescalePacket
from hpcdl.agent.supervisor.processes import mark_of
from hpcdl.agent.supervisor.start_file import IN_PROCESS, SAVED_STEP, TORCHRUN, BadStart, Start
from hpcdl.batch.system import systems
from hpcdl.core.model.arrays import variables
from hpcdl.core.model.commands import Request
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.job import BatchTasks, JobSpec
from hpcdl.wire.messages import RequestMessage

LAUNCHER = ("-m", "hpcdl.trainer.ranks")
"""What starts the ranks of one node, unless the job's command does so itself."""


class StartRefusal(Exception):
    """The request cannot be carried out here; one line says why."""


def nodes_and_gpus(message: RequestMessage, node: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The nodes of the request's placement, and this node's GPUs in it. Raises StartRefusal."""
    placement, gpus = message.request.placement, indices_of(message, node)
    if placement is None or not gpus:
        raise StartRefusal(f"the request names no GPU of {node}")
    return placement.nodes, gpus


def indices_of(message: RequestMessage, node: str) -> tuple[int, ...]:
    """This node's GPUs in the request; none where it names none."""
    placement = message.request.placement
    return () if placement is None else next((share.gpus for share in placement.shares if share.node == node), ())


def resume_variable(message: RequestMessage) -> dict[str, str]:
    """The variable that says that the attempt is not to begin at step 0."""
    return {} if message.saved_step is None else {SAVED_STEP: str(message.saved_step)}


def make_start(
    site: AgentContext, order: RequestMessage, gpu_env: dict[str, str] | None, formed: RescalePacket | None = None
) -> Start:
    """What start.json says. `gpu_env` None: a warm start. `formed`: the membership into which torchrun starts its
    ranks. Raises StartRefusal."""
    request, spec, node = order.request, order.spec, site.node
    if spec is None:
        raise StartRefusal("the request to start says not what")
    tag = site.tag((request.job, request.incarnation))
    directory = order.checkpoint_dir or spec.checkpoint_dir or None
    local = local_checkpoints(site, request.job, directory) if spec.nodes == (spec.nodes_max or 1) == 1 else None
    membership = request.membership if formed is None else formed.membership
    environment = job_environment(os.environ, spec) | {
        "HPCDL_JOB": str(request.job),
        "HPCDL_INCARNATION": str(request.incarnation),
        "HPCDL_MEMBERSHIP": str(membership),
        "HPCDL_NODE": node,
        "HPCDL_ADDRESS": site.address,
        "HPCDL_HOME": str(site.home),  # what it submits is this daemon's
    }
    if site.allocation:  # in one, signals of the batch system come to trainers as well
        environment["HPCDL_ALLOCATION"] = site.allocation
    if directory:
        environment["HPCDL_CHECKPOINT_DIR"] = directory
    if gpu_env is None and node in request.nodes:  # ranks that attach at the gate must know which they are
        environment |= nodes_environment(request.nodes, node)
    if order.identity:
        environment["HPCDL_IDENTITY"] = order.identity
    for name, seconds in (("HPCDL_INTERRUPTION_S", order.between_s), ("HPCDL_SAVE_S", order.save_s)):
        if seconds is not None:
            environment[name] = f"{seconds:.6g}"
    if spec.continue_from:
        environment["HPCDL_CONTINUE_FROM"] = spec.continue_from
    environment |= group_environment(site, order)
    if spec.trainer_library:
        environment["PYTHONPATH"] = with_library(environment.get("PYTHONPATH", ""), site.run)
    if site.emulated is not None:
        environment["HPCDL_EMULATED"] = str(site.emulated)
    command = spec.command
    gpus = len(indices_of(order, node)) or spec.gpus_min
    processes = gpus if spec.rescale == IN_PROCESS else 1
    if spec.rescale == TORCHRUN and formed is not None:
        processes = formed.ranks[formed.nodes.index(node)]
        # All nodes' tags have these three parts in common, and nothing else does.
        name, path = "-".join(tag.split(":")[:3]), environment.get("PATH", os.defpath)
        command = torchrun_command(spec, formed, node, name, site.address, path)
        environment |= TORCHRUN_ENVIRONMENT
    elif (
        spec.rescale == IN_PROCESS and (ranks := len(indices_of(order, node))) > 1 and LAUNCHER not in pairwise(command)
    ):
        # -P: what lies in the job's folder is its command's to import, not ours.
        command = (sys.executable, "-P", *LAUNCHER, str(ranks), "--", *command)
    if spec.batch is not None:
        steps = os.path.join(
            order.checkpoint_dir or str(site.run), f".steps.{site.instance}-{request.job}.{request.incarnation}"
        )
        command = batch_script(spec.batch, steps, command)
    if THREADS_VARIABLE not in dict(spec.env):
        of = site.gpus.number or gpus
        environment |= thread_variables(spec.command, spec.cwd, gpus=gpus, of=of, ranks=processes, cpus=spec.cpus)
    try:
        return Start(
            tag=tag_of(tag, order),
            job=request.job,
            incarnation=request.incarnation,
            membership=membership,
            node=node,
            argv=command,
            cwd=spec.cwd,
            env=environment,
            log=order.log,
            gpu_env=gpu_env,
            gate=gpu_env is None,
            grace_s=spec.grace_s,
            signal=spec.signal,
            progress_regex=spec.progress_regex,
            progress=spec.progress,
            resumes=spec.resumes,
            steps=spec.steps,
            checkpoint_dir=directory,
            agent_absence_s=site.absence_s,
            stopped_s=site.settings.stopped_s,
            log_limit_bytes=site.settings.log_limit_bytes,
            rescale=spec.rescale,
            request=request.id,
            mark=mark_of(tag_of(tag, order)),
            batch=bool(site.allocation),
            identity=order.identity,
            continue_from=spec.continue_from,
            memory_mib=spec.memory_mib,
            local_checkpoint_dir=local,
            output=output_file(spec.output, spec, request, node),
            error=output_file(spec.error, spec, request, node),
            apart=bool(spec.error or (spec.batch is not None and spec.batch.error)),
            nonce=order.nonce,
            nonces=order.nonces,
        )
    except BadStart as error:
        raise StartRefusal(str(error)) from None


def local_checkpoints(site: AgentContext, job: int, directory: str | None) -> str | None:
    """Where a job on this node alone saves first; None where the site has no such storage. Another checkpoint folder,
    as after a start from scratch, has another one here."""
    root = site.settings.local_checkpoints
    if root is None or directory is None:
        return None
    name = f"{site.instance}-{job}-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"
    return os.path.join(os.path.expandvars(root), f"hpcdl-{os.geteuid()}", name)


def output_file(pattern: str, spec: JobSpec, request: Request, node: str) -> str:
    """The file that a pattern names, with what Slurm and LSF put there; "" for none."""
    job, index = str(request.job), str(spec.array_index)
    values = {"j": job, "J": job, "A": str(spec.array or job), "a": index, "I": index, "u": spec.user}
    values["n"] = str(request.nodes.index(node)) if node in request.nodes else "0"
    values |= {"N": node, "x": spec.name.replace("/", "_")}
    return os.path.join(spec.cwd, filled(pattern, values)) if pattern else ""


STEPS = str(Path(__file__).with_name("steps") / "__main__.py")
"""What runs batch scripts, and the commands by which they start tasks: a file, for no job's PYTHONPATH hides that."""


def batch_script(batch: BatchTasks, folder: str, command: Sequence[str]) -> tuple[str, ...]:
    """What runs the command as its batch system would. `folder`: in which the nodes of the attempt meet."""
    return (sys.executable, "-I", STEPS, "script", json.dumps(to_json(batch)), folder, *command)


BASE = frozenset([
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LIBRARY_PATH",
    "PYTHONPATH", "VIRTUAL_ENV", "PYTHONHASHSEED", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "MODULEPATH",
    "LOADEDMODULES", "MODULESHOME", "LMOD_CMD", "KRB5CCNAME", "SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "SLURM_CONF", "LSF_ENVDIR", "LSF_SERVERDIR", "LSF_BINDIR", "LSF_LIBDIR",
])  # fmt: skip
"""Variables of the agent that its trainers get; what else a job needs it names itself."""

BASE_PREFIXES = ("LC_", "CONDA_", "NCCL_", "GLOO_", "UCX_")

_HIDDEN = re.compile(r"(PMI|PMIX|OMPI|PRTE|HPCDL)_?.*")
"""With those of a launcher a framework waits for ranks that nobody starts; those of hpcdl are ours to set, for the
agent's own may name another job.
"""

STUBS = str(Path(__file__).with_name("stubs"))
"""The folder of commands that refuse what would leave the job's GPUs, such as srun."""


def job_environment(agent: Mapping[str, str], spec: JobSpec) -> dict[str, str]:
    """The job's own variables over a small base of the agent's, without those that are hidden from trainers, and what
    the job itself says in HPCDL_* ones."""
    kept = {name: value for name, value in agent.items() if name in BASE or name.startswith(BASE_PREFIXES)}
    kept.update(spec.env)
    found = {name: value for name, value in kept.items() if not scrubbed(name)}
    found["PATH"] = with_stubs(found.get("PATH") or os.defpath)
    found["HPCDL_JOB_NAME"] = spec.name
    found["HPCDL_GRACE_S"] = f"{spec.grace_s:g}"
    found["HPCDL_SIGNAL"] = spec.signal
    found["HPCDL_RESCALE"] = spec.rescale
    if spec.steps is not None:
        found["HPCDL_STEPS"] = str(spec.steps)
    if spec.burst:
        found["HPCDL_BURST_PLANS"] = json.dumps({plan.gpus: plan.widths for plan in spec.burst}, separators=(",", ":"))
    return found | variables(spec)


def with_stubs(path: str) -> str:
    """The PATH with hpcdl's stubs first, and only there."""
    return os.pathsep.join([STUBS, *(each for each in path.split(os.pathsep) if each != STUBS)])


def scrubbed(name: str) -> bool:
    """Whether a variable of that name is kept from trainers."""
    hidden = (_HIDDEN, *(system.hidden_variables for system in systems()))
    return name != "HPCDL_PROFILE_BATCH" and any(each.fullmatch(name) for each in hidden)  # hpcdl profile run sets it


def nodes_environment(nodes: Sequence[str], node: str) -> dict[str, str]:
    """What ranks find each other by; `nodes` in the placement's order, whose first has the writer."""
    return {"HPCDL_NODES": ",".join(nodes), "HPCDL_NODE_RANK": str(list(nodes).index(node))}


def gpu_environment(uuids: Sequence[str], visible: str) -> dict[str, str]:
    """The grant. `visible`: CUDA_VISIBLE_DEVICES for it, by UUID."""
    return {
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible or "void",  # a container's; "" would be all of them to some runtimes
        "HPCDL_GPUS": ",".join(uuids),
        "HPCDL_GPU_COUNT": str(len(uuids)),
    }


THREADS_VARIABLE = "OMP_NUM_THREADS"

OURS = "HPCDL_OMP_NUM_THREADS"
"""The same number, by which a submit from within a job knows that nobody chose it (hpcdl/cli/submit/job.py)."""

LIMIT = 1 << 16  # bytes of a script

_LAUNCHERS = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|deepspeed|horovodrun|mpirun|mpiexec|srun|jsrun)\b"
)
"""What starts a process for each GPU: those share the number, and each takes it for its own."""


def thread_variables(
    command: Sequence[str], cwd: str, *, gpus: int, of: int, ranks: int, cpus: int | None = None
) -> Mapping[str, str]:
    """OMP_NUM_THREADS: the node's processors by the job's share of the node's GPUs. Jobs that share a node would
    otherwise take all of its processors each. `gpus` of the node's `of` are the job's; `ranks`: processes that hpcdl
    starts for it there. `cpus`: the processors that it asked for, None: its share."""
    if ranks == 1 and _launches(command, cwd):
        ranks = gpus
    all_of_them = len(os.sched_getaffinity(0))
    share = all_of_them * min(gpus, of) // max(of, 1) if cpus is None else min(cpus, all_of_them)
    number = str(max(1, share // max(ranks, 1)))
    return {THREADS_VARIABLE: number, OURS: number}


def _launches(command: Sequence[str], cwd: str) -> bool:
    """Whether the command, or the shell script that it runs, starts a process for each GPU."""
    if _LAUNCHERS.search(" ".join(command)):
        return True
    script = next((word for word in command if word.endswith((".sh", ".slurm", ".lsf", ".bash"))), None)
    if script is None:
        return False
    path = os.path.join(cwd, script)
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return _LAUNCHERS.search(file.read(LIMIT).decode("utf-8", "replace")) is not None
    except (OSError, ValueError):
        return False


MODULE = "torch.distributed.run"

TORCHRUN_START = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
    f"import runpy; runpy.run_module('{MODULE}', None, '__main__', True)"
)
"""As `-m`, but nothing is imported from the folder that the job is in. Python knows -P for that only since 3.11."""

RESTARTS = 1000
"""Of the ranks after one of them failed: each node that goes costs the others one, for a rank loses its peers then."""

MONITOR_S = 0.3

STORE = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""Seconds to wait for more nodes once there are enough, and after which (in all 3) a silent one is left out."""

TORCHRUN_ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""With a shared store PyTorch 2.13 cannot grow: a node that joins waits for a key that nobody sets, and all give up."""

_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")

_EXEC = re.compile(r"""'+exec' +(?:"([^"]+)"|(\S+)) "\$0" """)

SHEBANG_BYTES = 4096


def python_of(command: Sequence[str], cwd: str, path: str) -> str:
    """The Python whose torchrun is meant: the command's own, where it is one; what its #! line names, where it is a
    script of an environment's (VENV/bin/accelerate); else what the job's PATH finds. No link is followed: a virtual
    environment's python is one, and knows its packages by the name that it was called by."""
    first = _without_env(command)
    if _PYTHON.fullmatch(first.rpartition("/")[2]):
        return first
    found = shutil.which(first, path=path) if "/" not in first else os.path.join(cwd, first)
    words = _shebang(found) if found else ()
    if not words:
        return "python3"
    named = _without_env(words)
    return named if _PYTHON.fullmatch(named.rpartition("/")[2]) else "python3"


def _without_env(words: Sequence[str]) -> str:
    """What `env A=1 python3` runs; of any other command its first word."""
    if words[0].rpartition("/")[2] != "env":
        return words[0]
    rest = (each for each in words[1:] if not each.startswith("-") and "=" not in each)
    return next(rest, words[0])


def _shebang(file: str) -> tuple[str, ...]:
    """The words of a script's #! line; pip's /bin/sh line, which runs the next one's python, counts as that."""
    try:
        with open(file, "rb") as opened:
            lines = opened.read(SHEBANG_BYTES).decode("utf-8", "surrogateescape").split("\n")
    except OSError:
        return ()
    if not lines[0].startswith("#!"):
        return ()
    words = tuple(lines[0][2:].split())
    longer = _EXEC.match(lines[1]) if len(lines) > 1 and words and words[0].endswith("/sh") else None
    return (longer[1] or longer[2],) if longer else words


def torchrun_command(
    spec: JobSpec, membership: RescalePacket, node: str, name: str, address: str, path: str = os.defpath
) -> tuple[str, ...]:
    """What starts this node's ranks. `name`: the rendezvous's, the same on all nodes. `address`: this node's own IP.
    `path`: PATH of the job's environment.

    torchrun's elastic agents of all nodes meet at a store that the first node's keeps. When a node joins or goes they
    start all ranks anew, which resume from the last checkpoint.

    The job's least and most numbers of nodes bound what torchrun waits for; the membership says where it meets.
    """
    here = membership.ranks[membership.nodes.index(node)]
    most = spec.nodes if spec.nodes_max is None else spec.nodes_max
    host = "true" if membership.nodes[0] == node else "false"
    return (
        python_of(spec.command, spec.cwd, path),
        "-c",
        TORCHRUN_START,
        f"--nnodes={spec.nodes}:{most}",
        f"--nproc-per-node={here}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={membership.address}",
        f"--rdzv-id={name}",
        f"--rdzv-conf=is_host={host},{STORE}",
        f"--local-addr={address}",
        f"--monitor-interval={MONITOR_S}",
        f"--max-restarts={RESTARTS}",
        "--no-python",
        *spec.command,
    )
