"""What `hpcdl` is in a training environment that has no hpcdl of its own: the trainer library, and nothing else.

Agents put a folder with this file as hpcdl/__init__.py on the PYTHONPATH of jobs (hpcdl/agent/library.py). That comes
before what is installed, so it makes way for an hpcdl of the job's own, wholly: the two are never mixed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def _make_way(mine: str) -> bool:
    """Whether another `hpcdl` was found, and is the one from here on. `mine`: the folder on sys.path that has this."""
    before = list(sys.path)
    sys.path[:] = [each for each in before if os.path.realpath(each or ".") != mine]
    for finder in sys.meta_path:  # editable installs may have one of their own
        spec = finder.find_spec("hpcdl", None) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None and spec.origin is not None:  # not just a folder of that name
            module = importlib.util.module_from_spec(spec)
            sys.modules["hpcdl"] = module
            spec.loader.exec_module(module)
            return True
    sys.path[:] = before
    return False


if __name__ == "hpcdl" and not _make_way(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))):

    def __getattr__(name: str) -> object:
        if name.startswith("__") or name == "trainer":
            raise AttributeError(name)
        trainer = importlib.import_module("hpcdl.trainer")
        if name in trainer.__all__:
            return getattr(trainer, name)
        raise AttributeError(
            f"there is no hpcdl.{name} here: {sys.executable} has no hpcdl installed, and the agent gives jobs "
            "hpcdl.trainer alone: pip install hpcdl into it"
        )
