"""Runs a script of the trainer guide: `python guide.py NAME OUT`. OUT gets its name once it has ended."""

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from hpcdl.trainer import session
from tests.frameworks.stops import stop

name, out = sys.argv[1], Path(sys.argv[2])
guide = (Path(__file__).parents[2] / "docs" / "trainer-guide.md").read_text()
(script,) = re.findall(rf"```python\n(# {re.escape(name)}\n.*?)```", guide, re.DOTALL)
here = out.with_suffix(".guide")
here.mkdir(exist_ok=True)
(here / name).write_text(script)
progress = session.Session.progress


def at(self: session.Session, step: int, *rest: Any, **more: Any) -> None:
    stop(step)
    progress(self, step, *rest, **more)


session.Session.progress = at  # type: ignore[method-assign]
sys.argv = [name]
os.chdir(here)
runpy.run_path(name, run_name="__main__")
out.write_text(name)
