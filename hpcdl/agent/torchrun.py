"""How a job's ranks are started by torchrun on one node: from the job and a membership to a command line.

torchrun's elastic agents of all nodes meet at a store that the first node's keeps. When a node joins or goes they
start all ranks anew, which resume from the last checkpoint.
"""

import os
import re
import shutil
from collections.abc import Sequence

from hpcdl.agent.packets import Rescale
from hpcdl.core.model import JobSpec

MODULE = "torch.distributed.run"
START = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); "
    f"import runpy; runpy.run_module('{MODULE}', None, '__main__', True)"
)
"""As `-m`, but nothing is imported from the folder that the job is in. Python knows -P for that only since 3.11."""
RESTARTS = 1000
"""Of the ranks after one of them failed: each node that goes costs the others one, for a rank loses its peers then."""
MONITOR_S = 0.3
STORE = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
"""Seconds to wait for more nodes once there are enough, and after which (in all 3) a silent one is left out."""

ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
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


def command_line(
    spec: JobSpec, membership: Rescale, node: str, name: str, address: str, path: str = os.defpath
) -> tuple[str, ...]:
    """What starts this node's ranks. `name`: the rendezvous's, the same on all nodes. `address`: this node's own IP.
    `path`: PATH of the job's environment.

    The job's least and most numbers of nodes bound what torchrun waits for; the membership says where it meets.
    """
    here = membership.ranks[membership.nodes.index(node)]
    most = spec.nodes if spec.nodes_max is None else spec.nodes_max
    host = "true" if membership.nodes[0] == node else "false"
    return (
        python_of(spec.command, spec.cwd, path),
        "-c",
        START,
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
