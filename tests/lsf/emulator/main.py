"""The commands, by the name they are called with; modules are imported for the one that runs."""

import importlib
import os
import sys

from tests.lsf.emulator import faults
from tests.lsf.emulator.options import Refused
from tests.lsf.emulator.store import Store

COMMANDS = {
    "bsub": "submit",
    "bjobs": "bjobs",
    "bhist": "bhist",
    "bkill": "control",
    "bstop": "control",
    "bresume": "control",
    "brequeue": "control",
    "bhosts": "cluster",
    "bqueues": "cluster",
    "lshosts": "cluster",
    "lsid": "cluster",
    "bslots": "windows",
    "jobstat": "windows",
    "blaunch": "launch",
    "jsrun": "jsrun",
}
RUNS_OTHERS = ("blaunch", "jsrun")


def main(argv: list[str]) -> int:
    """Runs the command of argv[0]; its exit code."""
    command = os.path.basename(argv[0])
    home = os.environ.get("LSFEMU_HOME", "")
    if not home or not os.path.exists(os.path.join(home, "cluster.json")):
        print("LSF configuration is not found: LSFEMU_HOME is not a cluster's folder", file=sys.stderr)
        return 255
    store = Store(home)
    store_faults = faults.due(store, command)
    try:
        if not faults.before(store_faults):
            return 0
        module = importlib.import_module(f"tests.lsf.emulator.{COMMANDS[command]}")
        code: int = getattr(module, command)(store, argv[1:], dict(store_faults))
    except Refused as refused:
        sys.stdout.flush()
        print(refused, file=sys.stderr)
        return 255
    except BrokenPipeError:
        return 141
    if any(fault == "mail" for fault, _ in store_faults):
        print("You have new mail in /var/spool/mail/test")
    return code
