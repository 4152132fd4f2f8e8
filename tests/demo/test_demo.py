"""The demo as its user runs it, faster: the whole way on real processes; and how it ends when things go wrong."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcdl.agent.supervisor.processes import Process
from hpcdl.demo import episode, run
from hpcdl.demo.watch import EventWatch
from tests.report.story import rows, set_three
from tests.support.waiting import until
from tests.trainer.supervisor import ROOT

DEADLINE_S = 240.0
SCALES = (60, 20, 5)
"""Nothing is suspended that has not trained for longer than three starts (core/rules/exemption.py), and a pause of a
busy machine turns events round: both count less where jobs take longer."""


class Demo:
    """`hpcdl demo` in a folder of its own, with its output in a file."""

    def __init__(self, folder: Path, *given: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.output = folder / "output"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
        environ |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"}
        environ["HPCDL_POLICY"] = "no-such-policy"  # the user's own settings must not matter
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hpcdl", "demo", *given], env=environ, stdout=out, stderr=out, cwd=folder
            )

    def text(self) -> str:
        return self.output.read_text()

    def await_text(self, pattern: str) -> None:
        def come_or_never() -> bool:
            return bool(re.search(pattern, self.text())) or self.process.poll() is not None

        until(come_or_never, repr(pattern), DEADLINE_S, story=self.text)
        assert re.search(pattern, self.text()), self.text()

    def homes(self) -> list[Path]:
        return sorted(self.temporary.glob("hpcdl-demo-*/*"))

    def left(self) -> list[Process]:
        return [process for home in self.homes() or [self.temporary] for process in episode.find_processes(home, "")]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # it ends what it started
            try:
                self.process.wait(180)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@pytest.mark.long
@pytest.mark.timeout(3 * 900)
def test_set_three_from_beginning_to_end(tmp_path: Path) -> None:
    """At the first of SCALES at which this machine is quick enough. At any of them all jobs have to be right."""
    for scale in SCALES:
        folder = tmp_path / str(scale)
        folder.mkdir()
        demo = Demo(folder, "--scale", str(scale), "--report", "report")
        try:
            code = demo.process.wait(900)
        finally:
            demo.close()
        text = demo.text()
        assert code == 0 or "the simulator did not tell the truth" in text, text
        assert "6 of 6 jobs are DONE with the right weights" in text
        if code == 0 and "Inception-v3 suspended" in text:
            break
    assert code == 0, text
    assert re.search(r"Inception-v3 suspended on 3 GPUs \(saved at step \d+ in [\d.]+ s\)", text)
    assert re.search(r"Inception-v3 resumed on 4 GPUs as primary", text)
    assert "bit-identical to those of a training that never was" in text
    assert demo.left() == []
    assert demo.homes() == []  # removed
    report = folder / "report"
    assert sorted(path.name for path in report.iterdir()) == [
        "comparison.html",
        "fifo-exclusive.html",
        "marble.html",
        "summary.json",
    ]
    summary = json.loads((report / "summary.json").read_text())
    assert list(summary) == ["schema", "scale", "runs", "reduction"]
    assert (summary["schema"], summary["scale"]) == (1, scale)
    marble, exclusive = summary["runs"]
    assert (marble["policy"], exclusive["policy"]) == ("marble", "fifo-exclusive")
    assert marble["suspends"] >= 1
    assert exclusive["suspends"] == 0
    assert marble["makespan_s"] == pytest.approx(scale * marble["wall_s"], abs=0.1)
    assert summary["reduction"] == pytest.approx(1 - marble["makespan_s"] / exclusive["makespan_s"], abs=1e-3)
    for each in (marble, exclusive):
        keys = {"policy", "makespan_s", "wall_s", "utilisation", "memory_utilisation", "suspends", "jobs"}
        assert set(each) == keys
        assert 0 < each["memory_utilisation"] < each["utilisation"] <= 1
        assert [job["state"] for job in each["jobs"]] == ["DONE"] * 3
        assert all(job["verified"] is True for job in each["jobs"])
        assert all(job["gpus"][-1][1] == 0 for job in each["jobs"])
        keys = {"id", "name", "state", "start_s", "end_s", "jct_s", "gpus", "suspends", "lost_s", "verified"}
        assert all(set(job) == keys | {"memory_utilisation"} for job in each["jobs"])
        assert all(0 < job["memory_utilisation"] < 1 for job in each["jobs"])
    inception = marble["jobs"][1]
    assert [number for _, number in inception["gpus"] if number] == [3, 4]
    assert inception["lost_s"] > 0


@pytest.mark.parametrize(("differs", "good", "plays"), [(0, True, 1), (1, True, 2), (9, True, 3), (9, False, 1)])
def test_a_run_that_the_simulator_does_not_repeat_is_played_again(
    differs: int, good: bool, plays: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    homes: list[Path] = []

    def play(home: Path, *_: object) -> SimpleNamespace:
        homes.append(home)
        return SimpleNamespace(good=good, measures=SimpleNamespace(makespan_s=3.0))

    def simulated(*_: object) -> SimpleNamespace:
        return SimpleNamespace(differences=("not simulated: end of job 1",) * (len(homes) <= differs))

    monkeypatch.setattr(run, "play", play)
    monkeypatch.setattr(run, "simulate_again", simulated)
    monkeypatch.setattr(run, "truth_text", lambda episode, found: f"DIFFERENT: {found.differences[0]}")
    _, found = run._play_and_simulate(Path("homes"), "marble", episode.load_set(3), 20.0, {})
    assert [home.name for home in homes] == ["marble", "marble-2", "marble-3"][:plays]
    assert bool(found.differences) == (plays <= differs)
    said = capsys.readouterr().out
    assert said.count("marble: 60 emulated s") == plays
    assert said.count("is played again") == said.count("DIFFERENT: not simulated") == plays - 1


def test_interrupted(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--scale", "5", "--report", "report")
    try:
        demo.await_text("Inception-v3 started on 3 GPUs")
        assert demo.left() != []
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(DEADLINE_S) == 130, demo.text()
    finally:
        demo.close()
    assert "everything that it started is stopped" in demo.text()
    assert demo.left() == []


def test_a_daemon_that_dies(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--scale", "5", "--report", "report")
    try:
        demo.await_text("Inception-v3 started on 3 GPUs")
        home = demo.homes()[0]
        pid = json.loads((home / "access.json").read_text())["pid"]
        assert pid in [process.pid for process in episode.find_processes(home, "")]
        os.kill(pid, signal.SIGKILL)
        assert demo.process.wait(DEADLINE_S) == 1, demo.text()
    finally:
        demo.close()
    assert "daemon.log" in demo.text()
    assert str(home.parent) in demo.text()
    assert (home / "daemon.log").exists()  # kept, to be looked at
    assert demo.left() == []


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), 1e9])
def test_a_wrong_scale(scale: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(3, scale, tmp_path) == 1
    assert "choose from" in capsys.readouterr().err


def test_the_sets() -> None:
    three = episode.load_set(3)
    assert [(job.model, job.steps) for job in three.jobs] == [
        ("ResNet-50", 900),
        ("Inception-v3", 2000),
        ("VGG-16", 800),
    ]
    assert (three.gpus, three.lsf_s, three.marble_s, three.reduction) == (6, 707, 501, 0.291)
    assert [job.name for job in episode.load_set(1).jobs] == ["ResNet-50/800", "ResNet-50/3600", "Inception-v3"]
    for number in (0, 4, 99):
        with pytest.raises(ValueError, match="choose 1, 2 or 3"):
            episode.load_set(number)


def test_what_is_shown_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    watch = EventWatch(10.0, live=False)
    watch.take(rows(set_three()))
    assert watch.finished
    lines = capsys.readouterr().out.splitlines()
    assert " 167.0 s = 1670 emulated s  Inception-v3 suspended on 3 GPUs (saved at step 507 in 0.02 s)" in lines
    assert " 167.0 s = 1670 emulated s  Inception-v3 resumed on 4 GPUs as primary" in lines
    assert " 501.0 s = 5010 emulated s  Inception-v3 DONE" in lines
    assert "\x1b" not in "".join(lines)


def test_what_is_shown_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    watch = EventWatch(10.0, live=True)
    told = rows(set_three())
    watch.take(told[:8])
    first = capsys.readouterr().out
    assert "ResNet-50" in first
    assert "RUNNING" not in first  # nothing was reported as started yet
    watch.take(told[8:])
    second = capsys.readouterr().out
    assert second.startswith("\x1b[4A\x1b[J")
    assert second.count("DONE") == 6
    assert "2000/2000" in second
