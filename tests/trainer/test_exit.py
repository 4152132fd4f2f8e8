"""How a process leaves that has nothing left to do: as ever, but for the teardown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.trainer.supervisor import ROOT

SCRIPT = """
import hpcdl.trainer
import atexit, multiprocessing, os, sys, time
from hpcdl.trainer.exit import leave
class Teardown:
    def __del__(self, write=os.write):
        write(1, b"torn down ")
held = Teardown()
atexit.register(print, "registered", end=" ")
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), daemon=True)
child.start()
try:
    print("begins", end=" ")
    if sys.argv[1] == "leaves":
        leave(int(sys.argv[2]))
    sys.exit(int(sys.argv[2]))
finally:
    print("finally", end=" ")
"""


@pytest.mark.parametrize("code", [0, 143])
def test_only_the_teardown_is_left_out(code: int) -> None:
    def run(how: str) -> tuple[int, str]:
        # Its output is a pipe, and so is held back until it is flushed; a child that lived on would hold it open.
        argv = [sys.executable, "-c", SCRIPT, how, str(code)]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=180)
        assert done.stderr == ""
        return done.returncode, done.stdout.strip()

    assert run("leaves") == (code, "begins finally registered")
    assert run("exits") == (code, "begins finally registered torn down")


def test_a_forked_child_exits_as_ever() -> None:
    script = """
import os
from hpcdl.trainer import exit as leaving
pid = os.fork()
if pid == 0:
    raise SystemExit(5)
try:
    leaving.leave(3)
finally:
    forked = os.fork()
    if forked == 0:
        raise SystemExit(7)
    print(*(os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in (pid, forked)))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (3, "5 7\n"), done.stderr


@pytest.mark.parametrize("before", ["", "import logging, json, argparse"])
def test_nothing_is_lost_where_hpcdl_was_imported_first(before: str) -> None:
    script = (
        f"{before}\nimport hpcdl.trainer\nfrom hpcdl.trainer import exit as leaving\nprint(leaving.nothing_is_lost())"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert done.stdout == "True\n", done.stderr


def test_what_was_registered_before_hpcdl_is_done_at_a_suspend() -> None:
    script = """
import atexit
atexit.register(print, "registered before")
import hpcdl.trainer
from hpcdl.trainer import exit as leaving
print(leaving.nothing_is_lost())
hpcdl.trainer.exit_suspended()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (0, "False\nregistered before\n"), done.stderr
