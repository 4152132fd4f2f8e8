"""What ranks say that lost another one: never why a job ended, where that one ended by something else."""

import re

COLLECTIVE = re.compile(
    r"gloo|nccl|c10d|tcpstore|Dist(Network|Store|Backend)Error|Horovod|\bMPI_|\bPMIx?\b", re.IGNORECASE
)
"""What only ranks say; a connection that is closed or reset may be one to a database, too."""

PEER = re.compile(
    rf"{COLLECTIVE.pattern}|connection (was likely )?(closed|reset|refused)|broken pipe|peer|rendezvous|socket closed|"
    "remote (process|server)|failed to connect to all addresses",
    re.IGNORECASE,
)
