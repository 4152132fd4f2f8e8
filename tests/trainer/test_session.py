"""The handshake, with real processes on the trainer's side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.trainer import channel, checkpoints
from hpcdl.trainer.channel import Refused
from tests.support.waiting import until
from tests.trainer.supervisor import EXAMPLES, ROOT, supervisor

PLAIN = EXAMPLES / "plain_python.py"
ENDLESS = ("--steps", "1000000")  # who is to be caught in training does not end before, however slow this process is


def plain(tmp_path: Path, *more: str) -> list[str]:
    return [str(PLAIN), "--steps", "60", "--every", "20", "--out", str(tmp_path / "out.json"), *more]


def reference(tmp_path: Path, steps: int = 60) -> str:
    """The result of the same training without hpcdl and without a stop."""
    out = tmp_path / "reference.json"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
    argv = [sys.executable, str(PLAIN), "--steps", str(steps), "--out", str(out)]
    subprocess.run(argv, check=True, env=environ | {"PYTHONPATH": str(ROOT)}, timeout=180, capture_output=True)
    return out.read_text()


def test_uninterrupted(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(plain(tmp_path))
        assert parent.end(child) == 0
        attach = parent.of("attach")[0]
        assert attach["pid"] == attach["peer"] == child.pid
        assert (attach["rank"], attach["incarnation"], attach["membership"], attach["handler"]) == (0, 1, 1, True)
        assert parent.kinds() == ["attach", "ready", *["saving", "saved"] * 3, "done", "left"]
        assert [each["step"] for each in parent.of("saved")] == [20, 40, 60]
        assert not any(each["final"] for each in parent.of("saved"))
        assert parent.signals == []
        names = sorted(path.name for path in (tmp_path / "ckpt").iterdir())
        assert names == ["step-000000000040.i1", "step-000000000060.i1"]
    assert (tmp_path / "out.json").read_text() == reference(tmp_path)


@pytest.mark.parametrize("how", ["signal", "double signal", "packet", "both"])
def test_suspend_and_resume(tmp_path: Path, how: str) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(plain(tmp_path, *ENDLESS, "--pace", "0.03"))
        parent.wait("progress")
        if how != "signal":
            parent.send("suspend", grace_s=30)
        if how != "packet":  # "packet" is also what happens when a launcher swallowed the signal
            child.send_signal(signal.SIGTSTP)
            if how == "double signal":
                child.send_signal(signal.SIGTSTP)
        assert parent.end(child) == 0
        final = parent.of("saved")[-1]
        assert final["final"] is True
        assert parent.kinds()[-1] == "saved"
        assert final["step"] > 0
        assert checkpoints.is_complete(checkpoints.at(tmp_path / "ckpt", final["step"], 1))
        assert final["path"] == str(tmp_path / "ckpt" / f"step-{final['step']:012d}.i1")
        assert final["seconds"] > 0
        until(lambda: parent.signals, "SIGUSR1")
    assert not (tmp_path / "out.json").exists()
    steps = final["step"] + 30
    with supervisor(tmp_path / "run2", tmp_path / "ckpt") as parent:
        assert parent.end(parent.start(plain(tmp_path, "--steps", str(steps)), 2)) == 0
        assert parent.of("ready")[0]["step"] == final["step"]
    assert (tmp_path / "out.json").read_text() == reference(tmp_path, steps)


def test_suspend_again_before_the_first_step_names_the_resumed_checkpoint(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(plain(tmp_path, *ENDLESS, "--pace", "0.05"))
        parent.wait("ready")
        child.send_signal(signal.SIGTSTP)
        assert parent.end(child) == 0
        first = parent.of("saved")[-1]
    with supervisor(tmp_path / "run2", tmp_path / "ckpt") as parent:
        parent.answers.insert(0, {"type": "suspend", "grace_s": 30})  # it is there before the trainer may go on
        assert parent.end(parent.start(plain(tmp_path, *ENDLESS), 2)) == 0
        assert parent.kinds() == ["attach", "ready", "saved"]
        assert parent.of("saved")[0]["final"] is True
        assert parent.of("saved")[0]["path"] == first["path"]
        assert parent.of("saved")[0]["incarnation"] == 2


def test_nothing_saved_is_not_done(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        child = parent.start(plain(tmp_path, *ENDLESS, "--pace", "0.05"))
        parent.wait("ready")
        child.send_signal(signal.SIGTSTP)
        assert parent.end(child) == 143
        assert parent.of("saved") == []


def test_channel_full(tmp_path: Path) -> None:
    script = tmp_path / "chatty.py"
    script.write_text(
        "import time, hpcdl.trainer as hpcdl\n"
        "from hpcdl.trainer import session\n"
        "session.ANSWER_WAIT_S = session.ESSENTIAL_WAIT_S = 0.2\n"
        "session.PROGRESS_INTERVAL_S = 0.0\n"
        "it = hpcdl.attach()\n"
        "while it._channel.send('progress', {'step': 0}): pass\n"
        "for step in range(2000): hpcdl.progress(step)\n"
        "began = time.monotonic()\n"
        "with hpcdl.checkpoint(5) as folder: (folder / 'w').write_text('w')\n"
        "print(time.monotonic() - began, flush=True)\n"
        "assert not hpcdl.should_suspend()\n"
        "hpcdl.exit_suspended()\n"
    )
    with supervisor(tmp_path / "run", tmp_path / "ckpt", reads=False) as parent:
        child = parent.start([script])
        assert parent.end(child) == 0
        assert child.stdout is not None
        assert 0.2 <= float(child.stdout.read()) < 60
        assert [each.step for each in checkpoints.complete(tmp_path / "ckpt")] == [5]
        until(lambda: parent.signals, "SIGUSR1")


def test_supervisor_gone(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(plain(tmp_path, *ENDLESS, "--pace", "0.03"))
        parent.wait("progress")
        parent.hang_up()
        assert parent.end(child) == 0
        assert len(checkpoints.complete(tmp_path / "ckpt")) >= 1
        assert not (tmp_path / "out.json").exists()


def test_supervisor_gone_before_attach(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        parent.hang_up()
        child = parent.start(plain(tmp_path))
        assert parent.end(child) == 0
        assert [each.step for each in checkpoints.complete(tmp_path / "ckpt")] == [0]


def test_refused(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        parent.answers = [{"type": "refused", "why": "membership 1 is over"}]
        child = parent.start(plain(tmp_path))
        assert parent.end(child) == 1
        assert child.stdout is not None
        assert "membership 1 is over" in child.stdout.read()


def test_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", None) as parent:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(Refused, match=f"uid {os.getuid()}"):
            channel.Channel(str(parent.run / "s"))


def test_long_path_to_the_socket(tmp_path: Path) -> None:
    run = tmp_path / ("d" * 100) / ("e" * 100)
    with supervisor(run, None) as parent:
        line = channel.Channel(str(parent.run / "s"))
        assert line.peer == os.getpid()
        line.close()


def test_stale_claim_overwrites_nothing(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(plain(tmp_path, *ENDLESS, "--pace", "0.03"))
        parent.wait("saved")
        (tmp_path / "claim").write_text(json.dumps({"v": 1, "job": 7, "incarnation": 2, "tag": "x:7:2"}))
        os.rename(tmp_path / "claim", tmp_path / "ckpt" / "claim.json")
        before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ckpt").iterdir()}
        assert parent.end(child) == os.EX_TEMPFAIL
        assert "attempt 1 is stale" in parent.of("save_failed")[0]["why"]
        assert child.stdout is not None
        assert "attempt 1 is stale" in child.stdout.read()
        assert len(parent.of("save_failed")) == 1
        after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "ckpt").iterdir()}
        assert after == before
    with supervisor(tmp_path / "run2", tmp_path / "ckpt") as parent:
        assert parent.end(parent.start(plain(tmp_path))) == os.EX_TEMPFAIL
        assert parent.kinds() == ["attach"]


def test_disk_full_leaves_the_previous(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(
        "import resource, hpcdl.trainer as hpcdl\n"
        "def save(step, size):\n"
        "    with hpcdl.checkpoint(step) as folder: (folder / 'w').write_bytes(bytes(size))\n"
        "save(1, 10)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: save(2, 10000)\n"
        "except OSError as error: print(error.errno, flush=True)\n"
        "save(3, 10)\n"
        "hpcdl.exit_suspended()\n"
    )
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start([script])
        assert parent.end(child) == 0
        assert parent.kinds() == ["attach", "saving", "saved", "saving", "save_failed", "saving", "saved", "saved"]
        failed = parent.of("save_failed")[0]
        assert (failed["step"], failed["errno"]) == (2, 27)
        names = sorted(path.name for path in (tmp_path / "ckpt").iterdir())
        assert names == ["step-000000000001.i1", "step-000000000003.i1"]


def test_torn_checkpoints_fall_back(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        assert parent.end(parent.start(plain(tmp_path))) == 0
    os.truncate(tmp_path / "ckpt" / "step-000000000060.i1" / "model.json", 5)
    with supervisor(tmp_path / "run2", tmp_path / "ckpt") as parent:
        assert parent.end(parent.start(plain(tmp_path), 2)) == 0
        assert parent.of("ready")[0]["step"] == 40
    assert (tmp_path / "out.json").read_text() == reference(tmp_path)
    # The right size and the wrong content: its digest says so, and the one before is tried.
    whole = tmp_path / "ckpt" / "step-000000000060.i2" / "model.json"
    whole.write_bytes(bytes(whole.stat().st_size))
    with supervisor(tmp_path / "run3", tmp_path / "ckpt") as parent:
        child = parent.start(plain(tmp_path), 3)
        assert parent.end(child) == 0
        assert parent.of("ready")[0]["step"] == 40
        assert child.stdout is not None
        assert "step-000000000060.i2 is damaged (the content of model.json" in child.stdout.read()


def test_killed_at_any_moment(tmp_path: Path) -> None:
    argv = plain(tmp_path, *ENDLESS, "--every", "1")
    reached = 0
    for incarnation in range(1, 13):
        with supervisor(tmp_path / f"run{incarnation}", tmp_path / "ckpt") as parent:
            child = parent.start([*argv, "--pace", "0.005"], incarnation)
            begun = parent.wait("ready")["step"]
            assert begun >= reached  # what was called saved is still there
            parent.wait("saving", count=1 + incarnation % 4)
            child.kill()
            assert parent.end(child) == -signal.SIGKILL
            reached = max([begun, *(each["step"] for each in parent.of("saved"))])
    steps = reached + 10
    with supervisor(tmp_path / "last", tmp_path / "ckpt") as parent:
        assert parent.end(parent.start([*argv, "--steps", str(steps)], 99)) == 0
    assert (tmp_path / "out.json").read_text() == reference(tmp_path, steps)
    assert len(os.listdir(tmp_path / "ckpt")) == checkpoints.KEPT


def test_periodic_save_without_disk_lets_training_go_on(tmp_path: Path) -> None:
    wrapper = tmp_path / "small_disk.py"
    wrapper.write_text(
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))\n"
        "import hpcdl.trainer.session as session\n"
        "progress = session.Session.progress\n"
        "def at(self, step, *rest):\n"
        "    if step == 30: resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "    progress(self, step, *rest)\n"
        "session.Session.progress = at\n"
        f"sys.argv = sys.argv[1:]\nrunpy.run_path({str(PLAIN)!r}, run_name='__main__')\n"
    )
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start([str(wrapper), *plain(tmp_path)])
        assert parent.end(child) == 0
        assert [each["step"] for each in parent.of("save_failed")] == [20]
        assert [each["step"] for each in parent.of("saved")] == [40, 60]
    assert (tmp_path / "out.json").read_text() == reference(tmp_path)


def test_forked_child_is_not_the_rank(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, signal, hpcdl.trainer as hpcdl\n"
        "hpcdl.attach()\n"
        "if (pid := os.fork()) == 0:\n"
        "    ok = signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL\n"
        "    it = hpcdl.attach(rank=1)\n"
        "    it.ready(1)\n"
        "    os._exit(0 if ok and signal.getsignal(signal.SIGTSTP) == it._on_signal else 1)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        "hpcdl.done(code)\n"
    )
    with supervisor(tmp_path / "run", None) as parent:
        child = parent.start([script])
        assert parent.end(child) == 0
        first, second = parent.of("attach")
        assert (first["rank"], first["peer"]) == (0, child.pid)
        assert (second["rank"], second["pid"]) == (1, second["peer"])
        assert second["peer"] != child.pid
        assert parent.of("ready")[0]["peer"] == second["peer"]
        assert parent.of("done")[0]["step"] == 0


def test_hard_exit_does_not_wait_for_threads(tmp_path: Path) -> None:
    script = tmp_path / "threads.py"
    script.write_text(
        "import threading, hpcdl.trainer as hpcdl\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "with hpcdl.checkpoint(3) as folder: (folder / 'w').write_text('w')\n"
        "print('said', end='')\n"
        "hpcdl.exit_suspended(hard=True)\n"
    )
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start([script])
        assert parent.end(child) == 0
        assert child.stdout is not None
        assert child.stdout.read() == "said"
        assert [each["final"] for each in parent.of("saved")] == [False, True]


def test_preset_and_rank(tmp_path: Path) -> None:
    script = tmp_path / "presets.py"
    script.write_text("import hpcdl.trainer as h, time\nh.ready(0)\nwhile not h.should_suspend(): time.sleep(0.01)\n")
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start([script], HPCDL_SIGNAL="submitit", RANK="3")
        parent.wait("ready")
        child.send_signal(signal.SIGUSR2)
        assert parent.end(child) == 0
        assert (parent.of("attach")[0]["rank"], parent.of("attach")[0]["handler"]) == (3, True)
        child = parent.start([script], HPCDL_SIGNAL="none", HPCDL_NODE_RANK="1")
        attach = parent.wait("attach", peer=child.pid)
        assert (attach["rank"], attach["handler"]) == (1, False)
        parent.wait("ready", peer=child.pid)
        parent.send("suspend", grace_s=1)
        assert parent.end(child) == 0


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        child = parent.start(plain(tmp_path, *ENDLESS, "--pace", "0.03"), RANK="1")
        parent.wait("progress")
        child.send_signal(signal.SIGTSTP)
        assert parent.end(child) == 0
        assert parent.kinds() == ["attach", "ready"]
        assert not (tmp_path / "ckpt").exists()


def test_attaching_imports_no_framework(tmp_path: Path) -> None:
    script = tmp_path / "lean.py"
    script.write_text(
        "import sys, hpcdl.trainer, hpcdl.trainer.torch, hpcdl.trainer.keras, hpcdl.trainer.gate\n"
        "hpcdl.trainer.attach()\n"
        "others = {name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'__main__'}\n"
        "inside = {name.split('.')[1] for name in sys.modules if name.startswith('hpcdl.')}\n"
        "print(sorted(others - {'hpcdl'}), inside)\n"
    )
    with supervisor(tmp_path / "run", None) as parent:
        child = parent.start(["-S", script])
        assert parent.end(child) == 0
        assert child.stdout is not None
        assert child.stdout.read().strip() == "[] {'trainer'}"


@pytest.mark.parametrize("how", ["away", "others'", "no step"])
def test_it_does_not_begin_at_step_0_where_it_had_saved(tmp_path: Path, how: str) -> None:
    """Nothing is trained and nothing written; the supervisor hears why."""
    folder = tmp_path / "ckpt"
    script, wanted = plain(tmp_path), f"no checkpoint that can be used was found in {folder}"
    if how == "others'":
        with supervisor(tmp_path / "run0", folder) as parent:
            assert parent.end(parent.start(plain(tmp_path), 1, HPCDL_IDENTITY="other")) == 0
    elif how == "no step":
        script = ["-c", "import hpcdl.trainer as h; h.attach(); h.ready(0); print('trains', flush=True)"]
        wanted = "its script begins at step 0"
    before = sorted(folder.glob("*"))
    (tmp_path / "out.json").unlink(missing_ok=True)
    env = {"HPCDL_SAVED_STEP": "40", "HPCDL_IDENTITY": "mine"}
    with supervisor(tmp_path / "run", folder) as parent:
        child = parent.start(script, 2, **env)
        assert parent.end(child) == os.EX_DATAERR
        assert [(each["step"], each["why"]) for each in parent.of("missing")] == [(40, wanted)]
        assert parent.kinds() == ["attach", "missing"]
        assert child.stdout is not None
        assert "trains" not in child.stdout.read().splitlines()
    assert sorted(folder.glob("*")) == before
    assert not (tmp_path / "out.json").exists()


def test_another_rank_than_the_writer_may_find_nothing(tmp_path: Path) -> None:
    script = ["-c", "import hpcdl.trainer as h; h.attach(); assert h.resume() is None; h.ready(0)"]
    with supervisor(tmp_path / "run", tmp_path / "ckpt") as parent:
        assert parent.end(parent.start(script, 2, HPCDL_SAVED_STEP="40", RANK="1")) == 0
        assert parent.kinds() == ["attach", "ready"]
