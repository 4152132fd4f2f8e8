"""The check of what tests leave sees what hides, names it, ends it, and waits for whoever ends beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.leftovers import VARIABLE, Session

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json, os, subprocess, sys, time
from hpcdl.agent.supervisor import processes
from tests.support import leftovers

leftovers.PATIENCE_S, leftovers.LOOK_S = 3.0, 0.01
worker = subprocess.Popen(["true"])  # a worker that was killed: nobody waits for it yet
os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
session = leftovers.Session()
session.adopt()
session.running.add("tests/test_one.py::test_one")
subprocess.run([sys.executable, "-S", "-c", sys.argv[1]], env={})
end = time.monotonic() + 60
while not (session._during if sys.argv[2] == "stays" else processes.children_of(os.getpid()) == [worker.pid]):
    assert time.monotonic() < end
    time.sleep(0.01)
session.running.clear()
left, then = session.left(), session.left()
print(json.dumps([left, then, [pid for pid in processes.children_of(os.getpid()) if pid != worker.pid]]))
"""

CHAIN = """
import os, time
end = time.monotonic() + 300
while time.monotonic() < end:  # each starts the next, in a session of its own, and is gone in a moment
    time.sleep(0.003)  # long enough to be caught at any load; tests/agent/test_hiding.py has one without it
    if os.fork():
        os._exit(0)
    os.setsid()
"""

DEAF = """
import os, signal, time
if os.fork():
    os._exit(0)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""

ENDS = """
import os, time
if os.fork():
    os._exit(0)
time.sleep(0.2)
"""


def found(script: str, becomes: str) -> list[list[str]]:
    """What a session of its own says to have been left, then, and in the end; and its children but its workers."""
    environment = {name: value for name, value in os.environ.items() if name not in ("TESTS_OF_HPCDL", "HOME")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, script, becomes],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: list[list[str]] = json.loads(done.stdout)
    return said


def test_what_hides_is_named_and_ended() -> None:
    left, then, children = found(DEAF, "stays")
    assert len(left) == 1
    assert "signal.SIGTERM" in left[0]
    assert left[0].endswith("of tests/test_one.py::test_one")
    assert (then, children) == ([], [])


def test_a_chain_in_which_each_starts_the_next_is_named_and_ended() -> None:
    left, then, children = found(CHAIN, "stays")
    assert len(left) == 1
    assert "a session of its own" in left[0]
    assert left[0].endswith("of tests/test_one.py::test_one")
    assert (then, children) == ([], [])


def test_whoever_ends_is_waited_for() -> None:
    assert found(ENDS, "ends") == [[], [], []]


def test_what_a_failed_test_left_is_known_to_be_its_file_s() -> None:
    session = Session()
    assert not session.failed_in_the_file_of("process 7: python -m tests.x, of tests/a/test_b.py::test_c (setup)")
    session.failed.add("tests/a/test_b.py::test_d[1]")
    assert session.failed_in_the_file_of("process 7: python -m tests.x, of tests/a/test_b.py::test_c (setup)")
    assert not session.failed_in_the_file_of("process 7: python -m tests.x, of tests/a/test_bb.py::test_c")
    assert not session.failed_in_the_file_of("process 7: it started others and ended")


FILES = """
import os, tempfile
from pathlib import Path
from tests.support import leftovers

session = leftovers.Session()
(Path.home() / ".keras").mkdir()
tempfile.mkdtemp(prefix="torchelastic_")
print(*map(len, (os.listdir(Path.home()), os.listdir(session.folder))))
"""


def test_what_libraries_write_into_home_and_tmp_goes_with_the_session(tmp_path: Path) -> None:
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    variables = {key: value for key, value in os.environ.items() if key != VARIABLE}
    variables |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", FILES], env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "1 2\n")
    assert (os.listdir(home), os.listdir(temporary)) == ([], [])
