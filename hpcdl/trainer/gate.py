"""Early initialisation of any Python script: import and warm up while the GPUs are still another job's.

    python -m hpcdl.trainer.gate [--warmup MODULE_OR_FILE:FUNC] [--import NAME ...] [-m] SCRIPT [ARGS ...]

`hpcdl submit --gate` makes this of `python SCRIPT`, and with -m of `python -m MODULE`. At a gate (hpcdl gave no GPU
yet) this attaches, imports the frameworks that SCRIPT imports, runs FUNC, and waits until the gate is opened with a
list of GPUs; then SCRIPT runs in this very process. If CUDA was initialised before, or other
GPUs are seen than were granted, the process starts over cold, keeping its pid. Anywhere else it just runs SCRIPT.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import logging
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hpcdl.trainer import gpus, rng
from hpcdl.trainer.session import Session, attach

log = logging.getLogger("hpcdl.trainer")

FRAMEWORKS = ("torch", "tensorflow", "keras", "numpy")
COLD = "HPCDL_GATE_COLD"  # set over the exec of a cold start
POLL_S = 0.2


def main(argv: list[str]) -> None:
    """Raises SystemExit as the script does; 0 when suspended at the gate."""
    parser = argparse.ArgumentParser(prog="python -m hpcdl.trainer.gate")
    parser.add_argument("--warmup", metavar="MODULE_OR_FILE:FUNC", help="called without arguments; must not use a GPU")
    parser.add_argument("--import", dest="names", metavar="NAME", action="append", help="import this at the gate")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    if given.warmup is not None and ":" not in given.warmup:
        parser.error(f"--warmup {given.warmup}: say MODULE_OR_FILE:FUNC")
    if not given.module:
        # What Python does for `python SCRIPT`; so the warm-up finds the modules that the script finds.
        sys.path[0] = str(Path(given.script).resolve().parent)
    cold = os.environ.pop(COLD, None) is not None
    if os.environ.get("HPCDL_SOCKET") and (cold or os.environ.get("HPCDL_GPU_COUNT") == "0"):
        session = attach()
        if not cold:
            script = _source(given.script) if given.module else Path(given.script)
            _wait(session, given.warmup, given.names or frameworks(script))
        _check(session, cold)
    sys.argv = [given.script, *given.args]
    if given.module:
        runpy.run_module(given.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(given.script, run_name="__main__")


def _source(module: str) -> Path:
    """The file that `python -m` runs; one that is not there where Python will say what is wrong."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module}.__main__")
    except Exception:
        spec = None
    return Path(spec.origin if spec is not None and spec.origin else os.devnull)


def frameworks(script: Path) -> list[str]:
    """Those of FRAMEWORKS that the script's source imports, anywhere in it."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # running it will say what is wrong
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return [name for name in FRAMEWORKS if name in names]


def _wait(session: Session, warmup: str | None, names: list[str]) -> None:
    began = time.monotonic()
    _warm(warmup, names)
    initialised = gpus.touched()
    session.send("gate", warm_s=round(time.monotonic() - began, 3), cuda=initialised)
    while True:
        if session.poll():
            # Nothing was trained, so there is nothing to save; without `opened`, this exit is no completion.
            session.close()
            raise SystemExit(0)
        message = session.receive(POLL_S)
        if message is not None and message["type"] == "open" and isinstance(message.get("env"), dict):
            break
    os.environ.update({str(name): str(value) for name, value in message["env"].items()})
    if initialised:
        _start_cold()


def _warm(warmup: str | None, names: list[str]) -> None:
    """Import and run the warm-up. It fails softly: the script itself will meet the same error, or will not."""
    for name in names:
        try:
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
        except Exception:
            log.warning("importing %s at the gate failed", name, exc_info=True)
    if warmup is None:
        return
    try:
        function = _function(warmup)
        state = rng.capture()
        try:
            function()
        finally:
            rng.restore(state)  # the script draws the same random numbers as it would have without a warm-up
    except Exception:
        log.warning("the warm-up %s failed", warmup, exc_info=True)


def _function(warmup: str) -> Callable[[], object]:
    where, _, name = warmup.rpartition(":")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location("hpcdl_warmup", where)
        if spec is None or spec.loader is None:
            raise ImportError(f"{where} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    function: Callable[[], object] = getattr(module, name)
    return function


def _check(session: Session, cold: bool) -> None:
    """Reports which GPUs are seen. Others than granted: start cold if this process was warm, else exit."""
    granted = [name for name in os.environ.get("HPCDL_GPUS", "").split(",") if name]
    seen = None if os.environ.get("HPCDL_EMULATED") else gpus.visible()
    if seen is not None and not cold and gpus.driver_loaded():
        # The driver reads CUDA_VISIBLE_DEVICES once. A warm-up that merely looked for GPUs made it do so at the gate,
        # and what a child sees says nothing about this process.
        here = gpus.ask_driver()
        if here is None or not gpus.same(here, granted):
            _start_cold()
    ok = None if seen is None else gpus.same(seen, granted)
    session.send("opened", gpus=seen, ok=ok)
    if ok is False:
        log.error("the GPUs seen are %s, granted were %s", seen, granted)
        session.close()
        raise SystemExit(os.EX_CONFIG)


def _start_cold() -> None:
    log.warning("CUDA was used at the gate: starting cold")
    os.environ[COLD] = "1"
    sys.stdout.flush()
    sys.stderr.flush()
    command = Path("/proc/self/cmdline").read_bytes().split(b"\0")[1:-1]
    os.execv(sys.executable, [os.fsencode(sys.executable), *command])


if __name__ == "__main__":
    main(sys.argv[1:])
