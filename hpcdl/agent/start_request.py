"""From a request of the daemon to what a supervisor is to start."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpcdl.agent import threads, torchrun
from hpcdl.agent.environment import nodes_environment, trainer_environment
from hpcdl.agent.packets import Rescale
from hpcdl.agent.startfile import IN_PROCESS, TORCHRUN, BadStart, Start
from hpcdl.wire.messages import RequestMessage

LAUNCHER = ("-m", "hpcdl.trainer.ranks")
"""What starts the ranks of one node, unless the job's command does so itself."""


class Refusal(Exception):
    """The request cannot be carried out here; one line says why."""


def nodes_and_gpus(message: RequestMessage, node: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The nodes of the request's placement, and this node's GPUs in it. Raises Refusal."""
    placement = message.request.placement
    if placement is None:
        raise Refusal("the request names no GPUs")
    for share in placement.shares:
        if share.node == node:
            return placement.nodes, share.gpus
    raise Refusal(f"the request names no GPU of {node}")


def indices_of(message: RequestMessage, node: str) -> tuple[int, ...]:
    """This node's GPUs in the request; none where it names none."""
    placement = message.request.placement
    return () if placement is None else next((share.gpus for share in placement.shares if share.node == node), ())


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings of the same names give every supervisor (hpcdl/config.py).

    `allocation`: the id of the batch job that all this is in, "" outside of any.
    """

    agent_absence_s: float
    stopped_s: float
    log_limit_bytes: int
    allocation: str = ""


def make_start(
    order: RequestMessage,
    tag: str,
    node: str,
    limits: Limits,
    gpu_env: Mapping[str, str] | None,
    emulated: Path | None,
    address: str,
    formed: Rescale | None = None,
    node_gpus: int = 0,
) -> Start:
    """What start.json says. `gpu_env` None: a warm start. `emulated`: the folder of emulated GPUs. `address`: this
    node's IP for its peers. `formed`: the membership into which torchrun starts its ranks. `node_gpus`: how many this
    node has. Raises Refusal."""
    request, spec = order.request, order.spec
    if spec is None:
        raise Refusal("the request to start says not what")
    directory = order.checkpoint_dir or spec.checkpoint_dir or None
    membership = request.membership if formed is None else formed.membership
    environment = trainer_environment(
        os.environ,
        spec,
        job=request.job,
        incarnation=request.incarnation,
        membership=membership,
        node=node,
        checkpoint_dir=directory,
        address=address,
        allocation=limits.allocation,
    )
    if gpu_env is None and node in request.nodes:  # ranks that attach at the gate must know which they are
        environment |= nodes_environment(request.nodes, node)
    if order.identity:
        environment["HPCDL_IDENTITY"] = order.identity
    if spec.continue_from:
        environment["HPCDL_CONTINUE_FROM"] = spec.continue_from
    if emulated is not None:
        environment["HPCDL_EMULATED"] = str(emulated)
    command = spec.command
    gpus = len(indices_of(order, node)) or spec.gpus_min
    processes = gpus if spec.rescale == IN_PROCESS else 1
    if spec.rescale == TORCHRUN and formed is not None:
        processes = formed.ranks[formed.nodes.index(node)]
        # All nodes' tags have these three parts in common, and nothing else does.
        command = torchrun.command_line(
            spec, formed, node, "-".join(tag.split(":")[:3]), address, environment.get("PATH", os.defpath)
        )
        environment |= torchrun.ENVIRONMENT
    elif (
        spec.rescale == IN_PROCESS and (ranks := len(indices_of(order, node))) > 1 and LAUNCHER not in pairwise(command)
    ):
        # -P: what lies in the job's folder is its command's to import, not ours.
        command = (sys.executable, "-P", *LAUNCHER, str(ranks), "--", *command)
    if threads.NAME not in dict(spec.env):
        environment |= threads.threads(spec.command, spec.cwd, gpus=gpus, of=node_gpus or gpus, ranks=processes)
    try:
        return Start(
            tag=f"{tag}:{order.identity}" if order.identity else tag,
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
            agent_absence_s=limits.agent_absence_s,
            stopped_s=limits.stopped_s,
            log_limit_bytes=limits.log_limit_bytes,
            rescale=spec.rescale,
            request=request.id,
            batch=bool(limits.allocation),
            identity=order.identity,
            continue_from=spec.continue_from,
        )
    except BadStart as error:
        raise Refusal(str(error)) from None
