"""What submits hpcdl's batch script on this machine, for advice; it imports nothing before it is asked."""

import os
from pathlib import Path


def submit_line(home: Path) -> str:
    """The line, "" where no batch system is found that serves this machine."""
    from hpcdl.allocation.detect import find_system
    from hpcdl.batch.system import BatchError
    from hpcdl.config.settings import load_config

    try:
        system = find_system(load_config(home).batch, os.environ)
    except (BatchError, ValueError, OSError):
        return ""
    return "" if system is None or not system.serves(os.environ) else system.submit_line
