"""Which ends of a script are said to be its end."""

from pathlib import Path

import pytest

from tests.trainer.supervisor import ROOT, supervisor

SCRIPT = """
import atexit, functools, os, signal, sys, threading
import hpcdl.trainer as hpcdl

def main():
    hpcdl.attach()
    hpcdl.ready(0)
    hpcdl.done(3)

class Handler:
    def __call__(self, number, frame):
        sys.exit(0)

    def method(self, *given):
        sys.exit(0)

def at_signal(handler):
    signal.signal(signal.SIGTERM, handler)
    signal.raise_signal(signal.SIGTERM)

main()
{end}
"""


@pytest.mark.parametrize(
    ("end", "code", "left"),
    [
        ("", 0, True),
        ("sys.exit()", 0, True),
        ("sys.exit(0)", 0, True),
        ("sys.exit(main and None)", 0, True),
        ("threading.Thread(target=sys.exit, args=(3,)).start()", 0, True),
        ("atexit.register(os._exit, 4)", 4, True),
        ("threading.Thread(target=os._exit, args=(5,)).start()", 5, None),  # by which of two is a matter of luck
        ("sys.exit(3)", 3, False),
        ("sys.exit('no room')", 1, False),
        ("raise SystemExit(3)", 3, False),
        ("raise ValueError", 1, False),
        ("try:\n    sys.exit(0)\nexcept SystemExit:\n    raise ValueError", 1, False),
        ("try:\n    sys.exit(3)\nexcept SystemExit:\n    pass", 0, True),
        ("at_signal(lambda *given: sys.exit(0))", 0, False),
        ("at_signal(Handler())", 0, False),
        ("at_signal(Handler().method)", 0, False),
        ("at_signal(functools.partial(Handler().method, 1))", 0, False),
        ("at_signal(functools.partial(lambda *given: sys.exit(0)))", 0, False),
        ("os._exit(0)", 0, False),
        ("os.abort()", -6, False),
    ],
)
@pytest.mark.parametrize("module", [False, True])
def test_what_is_the_end_of_a_script(tmp_path: Path, end: str, code: int, left: bool | None, module: bool) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(end=end))
    with supervisor(tmp_path / "run", None) as parent:
        how = ["-m", "script"] if module else [str(tmp_path / "script.py")]
        child = parent.start(how, PYTHONPATH=f"{tmp_path}:{ROOT}")
        assert parent.end(child) == code
        if left is not None:
            assert ("left" in parent.kinds()) is left
