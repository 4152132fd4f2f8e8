"""`hpcdl page`: a file that is whole at any time, its owner's alone, and follows the daemon while it is written."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdl.client import Client
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.cli.test_process import argv, environment
from tests.report.test_live import answer
from tests.support.waiting import until

SOON_S = 180.0


def tell(fake: FakeDaemon, host: str, after: int = 0, **more: Any) -> None:
    told = answer(**({"after": after} | more))
    told["status"]["daemon"]["host"] = host
    content = (200, json.dumps({"schema": 1, **told}).encode())
    fake.answers[f"/v1/overview?after={after}"] = content


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    folder.mkdir()
    return folder / "now.html"


def test_once(hpcdl: Run, fake: FakeDaemon, target: Path) -> None:
    tell(fake, "login1")
    printed = hpcdl("page", "-o", target)
    assert (printed.code, printed.out) == (0, f"wrote {target}\n")
    text = target.read_text()
    assert "hpcdl on login1" in text
    assert 'http-equiv="refresh"' not in text
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert hpcdl("page", "-o", target, "--readers", "group", "--quiet").out == f"{target}\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert hpcdl("page", "-o", target, "--json").value["file"] == str(target)
    assert os.listdir(target.parent) == [target.name]
    assert [path for _, path, _ in fake.requests] == ["/v1/overview?after=0"] * 3, "one request each"


def test_a_link_is_replaced_and_not_followed(hpcdl: Run, fake: FakeDaemon, target: Path) -> None:
    tell(fake, "login1")
    other = target.with_name("other")
    other.write_text("kept")
    target.symlink_to(other)
    assert hpcdl("page", "-o", target).code == 0
    assert other.read_text() == "kept"
    assert not target.is_symlink()


def test_what_is_refused(hpcdl: Run, fake: FakeDaemon, target: Path) -> None:
    for words, said in (
        (("-o", "no/such/now.html"), "there is no folder"),
        (("-o", "/dev/null"), "is not a file"),
        (("-o", target, "--every", "10", "--json"), "--every goes on"),
        (("-o", target, "--every", "0.1"), "not in the range"),
        (("-o", target, "--back", "9h"), "not in the range"),
    ):
        printed = hpcdl("page", *words)
        assert printed.code in (1, 2)
        assert said in printed.err, words
    fake.answers["/v1/overview?after=0"] = (200, b'{"schema":1}')
    assert "not of this form" in hpcdl("page", "-o", target).err
    fake.kill()
    printed = hpcdl("page", "-o", target, "--every", "5")
    assert printed.code == 1
    assert "hpcdl daemon start" in printed.err
    assert not target.exists()


def test_a_signal_before_the_first_answer(
    hpcdl: Run, fake: FakeDaemon, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write_text("the page of before")
    monkeypatch.setattr(Client, "get", lambda *_: signal.raise_signal(signal.SIGTERM))
    printed = hpcdl("page", "-o", target, "--every", "5")
    assert (printed.code, printed.out, printed.err) == (128 + signal.SIGTERM, "", "")
    assert target.read_text() == "the page of before"


def test_again_and_again(fake: FakeDaemon, target: Path) -> None:
    """Through the daemon's absence, to the end by a signal; each round asks once, for what is new."""
    tell(fake, "first")
    tell(fake, "first", after=9)
    command = argv("page", "-o", target, "--every", "1s")
    process = subprocess.Popen(command, env=environment(fake.home), stderr=subprocess.PIPE)

    def says(*words: str) -> Callable[[], bool]:
        return lambda: target.exists() and all(each in target.read_text() for each in words)

    try:
        until(says("hpcdl on first", 'http-equiv="refresh" content="1"'), "the page")
        tell(fake, "second", after=9)
        until(says("hpcdl on second"), "the page")
        assert 'class="stale"' not in target.read_text()
        fake.kill()
        until(says('class="stale"', "This is how it was", 'http-equiv="refresh"', "hpcdl on second"), "the page")
        tell(fake, "third", after=9)
        fake.start()
        until(says("hpcdl on third"), "the page")
        assert 'class="stale"' not in target.read_text()
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=SOON_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, told) == (128 + signal.SIGINT, b"")
    assert says('class="stale"', "Nobody writes this page any more")()
    assert 'http-equiv="refresh"' not in target.read_text()
    assert os.listdir(target.parent) == [target.name]


def test_the_benchmark_says_what_it_paints_with() -> None:
    program = Path(__file__).parents[2] / "benchmarks" / "page.py"
    hidden = f"import runpy, sys; sys.modules['playwright'] = None; runpy.run_path({str(program)!r}, None, '__main__')"
    done = subprocess.run([sys.executable, "-c", hidden, "--paint"], capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "there is no playwright, which steers Chromium: make install-test installs it\n"
