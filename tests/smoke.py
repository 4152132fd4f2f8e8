"""`make smoke`: does this installation of hpcdl work? It takes less than a minute, and no PyTorch, GPU or batch system.

    python -m tests.smoke

Runs hpcdl's own commands end to end: a daemon with emulated GPUs, and a training job that is suspended, resumed and
finished. Needs only what `make venv` installs, not pytest. Its home is a temporary folder.
`tests/support/leftovers.py` sees that no process and no file remains.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.leftovers import Session
from tests.system.trainer import final

TRAINER = Path(__file__).parent / "system" / "trainer.py"
PATIENCE_S = 120.0
"""Of one check; an idle machine needs a few seconds."""
STEPS = 60
FOLLOWING = "hpcdl doctor says what hpcdl needs here; `make clean venv` installs it again"


class Failed(Exception):
    """A check failed: what was found, and the next step."""

    def __init__(self, found: str, following: str) -> None:
        super().__init__(found)
        self.following = following


class Smoke:
    """The checks, in their order; each returns what it found, in words."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.job = ""
        (home / "config.yaml").write_text("batch: none\nmonitor_interval_s: 1\n")
        (home / "config.yaml").chmod(0o600)

    def version(self) -> str:
        return self.hpcdl("--version")

    def doctor(self) -> str:
        """FAILs are errors; WARNs, such as no GPU, are told."""
        rows = self.json("doctor", codes=(0, 1))["checks"]
        for row in rows:
            if row["state"] == "FAIL":
                raise Failed(f"{row['name']}: {row['detail']}", row["next"])
        warnings = [f"{row['name']}: {row['detail']}" for row in rows if row["state"] == "WARN"]
        return "; ".join(["no failure", *warnings])

    def daemon(self) -> str:
        self.json("daemon", "start", "--emulate-gpus", "2")
        status = self.json("daemon", "status")
        return f"pid {status['daemon']['pid']}, with an agent and 2 emulated GPUs"

    def submit(self) -> str:
        pause = (
            self.home / "pause"
        )  # the trainer stands still at step 30 while this is there, however late suspend comes
        pause.touch()
        command = [sys.executable, str(TRAINER), str(STEPS), "--save-every", "1000", "--pause", str(pause)]
        submitted = self.json("submit", "--gpus", "1", "--steps", str(STEPS), "--cwd", "/", "--", *command)
        self.job = str(submitted["jobs"][0]["id"])
        row = self.until(lambda row: (row["step"] or 0) >= 10, "train")
        return f"job {self.job} trains: step {row['step']} of {STEPS}"

    def listing(self) -> str:
        (row,) = self.json("ls")["jobs"]
        return f"job {row['id']}: {row['name']}, {row['state']} on {row['gpus']} GPU"

    def suspend(self) -> str:
        self.hpcdl("suspend", self.job)
        row = self.until(lambda row: row["state"] == "SUSPENDED", "be suspended")
        (self.home / "pause").unlink()
        return f"its checkpoint is saved at step {row['step']}, its GPU free"

    def resume(self) -> str:
        self.hpcdl("resume", self.job)
        self.hpcdl("wait", self.job, "--timeout", str(PATIENCE_S))
        if f"resumed at {STEPS}" in (log := self.hpcdl("logs", self.job)) or log.count("resumed at ") < 2:
            raise Failed(f"job {self.job} did not go on from its checkpoint; its output: {log}", "")
        if (self.home / "checkpoints" / self.job / "final").read_text() != final(STEPS):
            raise Failed(f"job {self.job} lost or repeated a step", "")
        return f"it went on from there and finished all {STEPS} steps; none was lost or repeated"

    def stop(self) -> str:
        self.hpcdl("daemon", "stop")
        return "the daemon and its agent have ended"

    CHECKS = (version, doctor, daemon, submit, listing, suspend, resume, stop)

    def hpcdl(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Runs hpcdl with these words; its output."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "hpcdl", *words],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=PATIENCE_S + 10,
                env=os.environ | {"HPCDL_HOME": str(self.home)},
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"hpcdl {words[0]} did not answer within {late.timeout:g} s", "") from None
        if done.returncode not in codes:
            raise Failed(f"hpcdl {' '.join(words[:2])} exited {done.returncode}: {done.stderr.strip()}", "")
        return done.stdout.strip()

    def json(self, *words: str, codes: tuple[int, ...] = (0,)) -> Any:
        end = words.index("--") if "--" in words else len(words)
        return json.loads(self.hpcdl(*words[:end], "--json", *words[end:], codes=codes))

    def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The job's row as soon as this holds of it."""
        end = time.monotonic() + PATIENCE_S
        while True:
            row: dict[str, Any] = self.json("show", self.job)["job"]
            if holds(row):
                return row
            if row["state"] in ("DONE", "FAILED", "CANCELLED") or time.monotonic() > end:
                raise Failed(f"job {self.job} was to {what}, and is {row['state']}: {row['reason']}", "")

    def log(self) -> list[str]:
        """The end of what the daemon wrote, for a failure."""
        path = self.home / "daemon.log"
        return path.read_text(errors="replace").splitlines()[-15:] if path.exists() else []


def main() -> int:
    """0: it works. 1: it does not, and the last line says why and what to do."""
    began = time.monotonic()
    print(f"hpcdl: {len(Smoke.CHECKS)} checks of this installation; an idle machine takes 10 s for them", flush=True)
    session = Session()
    smoke = Smoke(Path(tempfile.mkdtemp(dir=session.folder)))
    failed = True
    following = FOLLOWING
    try:
        for check in Smoke.CHECKS:
            start = time.monotonic()
            found = check(smoke)
            print(f"ok      {check.__name__:8} {found} ({time.monotonic() - start:.1f} s)", flush=True)
        failed = False
    except Failed as error:
        following = error.following or FOLLOWING
        print(f"FAILED  {check.__name__:8} {error}", *smoke.log(), sep="\n        ")
    except KeyboardInterrupt:
        return 130
    finally:
        if failed:
            with contextlib.suppress(Failed):
                smoke.hpcdl("daemon", "stop", "--now")
        left = session.left()
    for each in left:
        print(f"FAILED  leftover {each}")
    if failed or left:
        print(f"hpcdl: this installation does not work: see the lines with FAILED. Next: {following}")
        return 1
    print(f"hpcdl: this installation works ({time.monotonic() - began:.0f} s; nothing is left behind). Next: make demo")
    return 0


if __name__ == "__main__":
    sys.exit(main())
