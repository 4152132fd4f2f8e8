"""`hpcdl metrics`: printed, and in a file that others read, whole, fresh or empty."""

import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.cli.metrics import _labelled
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.cli.test_process import argv, environment
from tests.daemon.prometheus import read
from tests.support.waiting import until

HELD, FREE = {"state": "held"}, {"state": 'fr"ee'}
ROWS = [
    {
        "name": "hpcdl_gpus",
        "kind": "gauge",
        "help": "GPUs.",
        "samples": [{"value": 3, "labels": HELD}, {"value": 1, "labels": FREE}],
    },
    {"name": "hpcdl_pilots", "kind": "gauge", "help": "Pilots.", "samples": [{"value": 0}]},
]
TEXT = """\
# HELP hpcdl_gpus GPUs.
# TYPE hpcdl_gpus gauge
hpcdl_gpus{state="held"} 3.0
hpcdl_gpus{state="fr\\"ee"} 1.0
# HELP hpcdl_pilots Pilots.
# TYPE hpcdl_pilots gauge
hpcdl_pilots 0.0
"""

SOON_S = 180.0


def folder(parent: Path) -> Path:
    found = parent / "metrics"
    found.mkdir()
    return found


def answer(fake: FakeDaemon) -> None:
    fake.answers["/v1/metrics?form=json"] = (200, json.dumps({"schema": 1, "metrics": ROWS}).encode())
    fake.answers["/v1/metrics"] = (200, TEXT.encode())


def test_what_is_printed(hpcdl: Run, fake: FakeDaemon) -> None:
    answer(fake)
    printed = hpcdl("metrics", "--label", "user=ada", "--label", 'note=a"b')
    assert printed.code == 0
    found = read(printed.out)
    assert found["hpcdl_up"].samples == {("hpcdl_up", (("user", "ada"), ("note", 'a"b'))): 1}
    assert found["hpcdl_gpus"].samples == {
        ("hpcdl_gpus", (("user", "ada"), ("note", 'a"b'), ("state", state))): many
        for state, many in (("held", 3), ('fr"ee', 1))
    }
    assert found["hpcdl_pilots"].samples == {("hpcdl_pilots", (("user", "ada"), ("note", 'a"b'))): 0}
    told = hpcdl("metrics", "--json", "--label", "user=ada").value
    assert told == {"schema": 1, "labels": {"user": "ada"}, "metrics": [UP, *ROWS]}
    assert hpcdl("metrics", "--quiet").out == "hpcdl_up\nhpcdl_gpus\nhpcdl_pilots\n"


UP = {"name": "hpcdl_up", "kind": "gauge", "help": "Whether a daemon answered.", "samples": [{"value": 1}]}


@given(st.text())
def test_whatever_a_label_says_stays_in_its_label(value: str) -> None:
    found = read(_labelled(TEXT, (("user", value),)))
    assert list(found) == ["hpcdl_gpus", "hpcdl_pilots"]
    shown = value.encode("utf-8", "replace").decode()
    assert list(found["hpcdl_pilots"].samples) == [("hpcdl_pilots", (("user", shown),))]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--every", "5"), "name one with -o"),
        (("-o", "x.prom", "--json"), "leave out --json"),
        (("--label", "__x=1"), "is not NAME=VALUE"),
        (("--label", "x"), "is not NAME=VALUE"),
        (("--label", "x=1", "--label", "x=2"), "only once"),
        (("-o", "no/such/x.prom"), "there is no folder"),
    ],
)
def test_what_is_refused(hpcdl: Run, fake: FakeDaemon, words: tuple[str, ...], said: str) -> None:
    printed = hpcdl("metrics", *words)
    assert printed.code in (1, 2)
    assert said in printed.err


def test_a_daemon_that_says_something_else(hpcdl: Run, fake: FakeDaemon) -> None:
    for metrics in ("[1]", '[{"kind":"gauge"}]', "null"):
        fake.answers["/v1/metrics?form=json"] = (200, f'{{"schema":1,"metrics":{metrics}}}'.encode())
        printed = hpcdl("metrics", "--json")
        assert (printed.code, printed.out) == (1, "")
        assert "not of this form" in printed.err
    fake.answers["/v1/metrics"] = (200, b"<html>")
    assert "not of this form" in hpcdl("metrics").err
    fake.answers["/v1/metrics"] = (403, b'{"schema":1,"error":"not for you","code":"no"}')
    assert "not for you" in hpcdl("metrics").err


def test_a_file(hpcdl: Run, fake: FakeDaemon, tmp_path: Path) -> None:
    answer(fake)
    target = folder(tmp_path) / "hpcdl.prom"
    assert hpcdl("metrics", "-o", str(target)).code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert read(target.read_text())["hpcdl_up"].samples == {("hpcdl_up", ()): 1}
    assert hpcdl("metrics", "-o", str(target), "--readers", "all").code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    fake.kill()
    gone = hpcdl("metrics", "-o", str(target), "--label", "user=ada")
    assert gone.code == 1
    assert target.read_text() == (
        '# HELP hpcdl_up Whether a daemon answered.\n# TYPE hpcdl_up gauge\nhpcdl_up{user="ada"} 0\n'
    )
    assert os.listdir(target.parent) == [target.name]


def test_again_and_again(fake: FakeDaemon, tmp_path: Path) -> None:
    """Through the daemon's absence, to the end by a signal."""
    answer(fake)
    target = folder(tmp_path) / "hpcdl.prom"
    command = argv("metrics", "-o", str(target), "--every", "1")
    process = subprocess.Popen(command, env=environment(fake.home), stderr=subprocess.PIPE)

    def says(text: str) -> Callable[[], bool]:
        return lambda: target.exists() and text in target.read_text()

    try:
        until(says("hpcdl_up 1"), "the file to say so")
        fake.kill()
        until(says("hpcdl_up 0"), "the file to say so")
        fake.start()
        until(says("hpcdl_up 1"), "the file to say so")
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=SOON_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, told) == (128 + signal.SIGTERM, b"")
    assert os.listdir(target.parent) == [target.name]
