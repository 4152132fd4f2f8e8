"""A daemon whose memory is used up ends, says so, and answers nothing by half."""

import os
import resource
import subprocess
import sys
from pathlib import Path

from hpcdl.client import Client
from hpcdl.daemon import memory
from tests.support.waiting import until

LIMIT = 400_000 << 10


def test_it_ends_and_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    environment = {**os.environ, "HPCDL_HOME": str(home)}

    def hpcdl(*argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "hpcdl", *argv], capture_output=True, text=True, env=environment, timeout=300
        )

    argv = [sys.executable, "-P", "-m", "hpcdl.daemon", "--home", str(home), "--no-agent", "--ready-fd", "2"]
    daemon = subprocess.Popen(
        argv,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT)),
    )
    try:
        until(lambda: (home / "access.json").exists(), "the access file")
        said, taken = [], 0
        for _ in range(8):
            done = hpcdl("submit", "--array", "1-10000", "--", "sleep", "100")
            said.append(done.stdout + done.stderr)
            taken += done.returncode == 0
            if daemon.poll() is not None:
                break
        assert daemon.wait(60) == memory.EXIT, said
    finally:
        daemon.kill()
        daemon.wait()
    assert "Traceback" not in (log := (home / "daemon.log").read_text())
    assert memory.ENDED in log.splitlines()[-1]
    assert not [text for text in said if "the daemon failed" in text], "an answer that is none"
    hpcdl("daemon", "start", "--emulate-gpus", "1")
    try:
        with Client(home) as client:
            known = client.get("/v1/status")["jobs"]
        assert sum(known.values()) == 10_000 * taken, "what was acknowledged or spooled is there, and once"
    finally:
        hpcdl("daemon", "stop", "--now")
