"""Which batch system a process is under, and whether the batch job of a lease's holder has ended."""

import stat
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hpcdl.allocation.detect import BatchContext, BatchRun, detect, find_system, has_ended, look_around
from hpcdl.batch.adapter import Allocation, BatchAdapter, Completed
from hpcdl.batch.site import SiteFile
from hpcdl.batch.system import BatchError, system_named
from hpcdl.cli import main
from hpcdl.core.model.pilot import BatchJob, BatchState


def with_commands(folder: Path, *kinds: str) -> str:
    """A PATH that has these batch systems' commands."""
    folder.mkdir(exist_ok=True)
    for kind in kinds:
        for name in system_named(kind).commands:
            path = folder / name
            path.write_text("#!/bin/sh\nexit 1\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


@pytest.mark.parametrize(
    "choice, environ, commands, kind",
    [
        ("auto", {}, (), None),
        ("auto", {}, ("slurm",), "slurm"),
        ("auto", {}, ("lsf",), "lsf"),
        ("auto", {"SLURM_CONF": "/x"}, ("lsf", "slurm"), "slurm"),
        ("auto", {"LSB_JOBID": "5"}, ("slurm",), "lsf"),
        ("auto", {"SLURM_JOB_ID": "5"}, (), "slurm"),
        ("auto", {"SLURM_JOB_ID": ""}, ("lsf",), "lsf"),
        ("none", {"SLURM_JOB_ID": "5"}, ("slurm",), None),
        ("lsf", {"SLURM_JOB_ID": "5"}, ("slurm",), "lsf"),
        ("slurm", {}, (), "slurm"),
    ],
)
def test_the_environment_comes_first_then_the_commands_on_path(
    tmp_path: Path, choice: str, environ: dict[str, str], commands: tuple[str, ...], kind: str | None
) -> None:
    environ = {"PATH": with_commands(tmp_path, *commands), **environ}
    system = detect(choice, environ, refuse, now=lambda: 0.0)
    assert (None if system is None else system.kind) == kind


def found(environ: dict[str, str]) -> str | None:
    """The name of the batch system that is found where none is chosen."""
    system = find_system("auto", environ)
    return None if system is None else system.name


def test_slurm_without_a_configuration_gives_way_to_lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"PATH": with_commands(tmp_path, "lsf", "slurm")}
    conf = tmp_path / "slurm.conf"
    monkeypatch.setattr("hpcdl.slurm.system.CONF", (str(conf),))
    assert found(environ) == "lsf"
    conf.touch()
    assert found(environ) == "slurm"
    assert found({"PATH": with_commands(tmp_path / "alone", "slurm")}) == "slurm"


def test_one_command_alone_is_no_batch_system(tmp_path: Path) -> None:
    path = with_commands(tmp_path, "lsf")
    (tmp_path / "lsid").unlink()
    assert found({"PATH": path}) is None


def refuse(*argv: Any, **rest: Any) -> Completed:
    raise AssertionError(f"to find out which it is asks nothing: {argv}")


def test_to_look_around_outside_of_an_allocation_asks_nothing() -> None:
    here = look_around("slurm", {}, now=lambda: 0.0, site=SiteFile())
    assert here.system is not None
    assert (here.batch_job, here.trouble, here.commands.count) == (None, "", 0)
    assert look_around("none", {"SLURM_JOB_ID": "5"}, now=lambda: 0.0).system is None
    assert not BatchContext().batch_ended("slurm:5::")


def test_half_an_allocation_is_told_and_no_error() -> None:
    here = look_around("auto", {"SLURM_JOB_ID": "5", "PATH": "/nowhere"}, now=lambda: 0.0)
    assert here.run is None
    assert "SLURM" in here.trouble


# --- whose batch job has ended ----------------------------------------------------------------------------------------

START = 1_700_000_000.0
HELD = BatchRun("slurm", "12", START, "alpha")


def asked(job: BatchJob | None, second: Callable[[Collection[str]], dict[str, BatchJob]] | None = None) -> BatchAdapter:
    def poll(ids: Collection[str]) -> dict[str, BatchJob]:
        assert list(ids) == ["12"]
        return {"12": BatchJob("12", BatchState.MISSING) if job is None else job}

    return cast(BatchAdapter, SimpleNamespace(kind="slurm", poll=poll, confirm=second or poll))


def job(state: BatchState, started_at: float | None = START) -> BatchJob:
    return BatchJob("12", state, started_at=started_at)


@pytest.mark.parametrize(
    "seen, ended",
    [
        (job(BatchState.ENDED), True),
        (job(BatchState.ENDED, None), True),
        (job(BatchState.ENDED, START + 20), True),
        (job(BatchState.MISSING), False),
        (job(BatchState.UNKNOWN), False),
        (job(BatchState.RUNNING), False),
        (job(BatchState.SUSPENDED), False),
        (job(BatchState.ENDING), False),
        (None, False),
        (job(BatchState.PENDING, None), True),  # requeued: it waits again
        (job(BatchState.RUNNING, START + 3600), True),  # requeued: it runs again
        (job(BatchState.ENDED, START - 3600), False),  # another batch job, of another cluster
    ],
)
def test_only_an_end_that_the_batch_system_tells_is_one(seen: BatchJob | None, ended: bool) -> None:
    assert has_ended(asked(seen), str(HELD), None, "alpha") is ended


@pytest.mark.parametrize("state", [BatchState.RUNNING, BatchState.UNKNOWN, BatchState.MISSING])
def test_what_one_command_says_alone_is_no_end(state: BatchState) -> None:
    system = asked(job(BatchState.ENDED), lambda ids: {"12": job(state)})
    assert not has_ended(system, str(HELD), None, "alpha")


def test_another_clusters_word_proves_nothing() -> None:
    assert not has_ended(asked(job(BatchState.ENDED)), str(HELD), None, "beta")
    assert has_ended(asked(job(BatchState.ENDED)), str(HELD), None, ""), "by its id and its start"
    again = job(BatchState.RUNNING, START + 3600)
    assert not has_ended(asked(again), str(HELD), None, ""), "requeued, or of another cluster: nobody knows"
    assert has_ended(asked(again), str(HELD), BatchRun("slurm", "12", START + 3600), "")
    assert not has_ended(asked(job(BatchState.ENDED)), "lsf:12::", None, "alpha")


@pytest.mark.parametrize("text", ["", "12", "slurm:", "slurm:12:soon:alpha", "::: ", "slurm::5:x"])
def test_what_is_no_batch_run_proves_nothing(text: str) -> None:
    assert BatchRun.parse(text) is None
    assert not has_ended(asked(job(BatchState.ENDED)), text, None, "alpha")


@pytest.mark.parametrize("run", [HELD, BatchRun("lsf", "7[2]", None), BatchRun("lsf", "8", 5.0, "a:b")])
def test_a_run_is_read_back(run: BatchRun) -> None:
    assert BatchRun.parse(str(run)) == run


def test_a_batch_system_that_is_away_proves_nothing() -> None:
    def poll(ids: Collection[str]) -> dict[str, BatchJob]:
        raise BatchError("squeue has not answered within 30 s", away=True)

    system = cast(BatchAdapter, SimpleNamespace(kind="slurm", poll=poll))
    assert not BatchContext(system).batch_ended(str(HELD))


def test_a_run_is_of_an_allocation() -> None:
    allocation = Allocation("slurm", "12", ("n1",), 4, started_at=START)
    assert str(BatchRun.of(allocation, "alpha")) == "slurm:12:1700000000:alpha"
    make: Callable[[str], BatchRun | None] = BatchRun.parse
    assert make("slurm:12:1700000000:alpha") == BatchRun("slurm", "12", START, "alpha")


def test_a_batch_job_starts_its_agents_as_the_sites_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[BatchAdapter] = []

    def run_pilot(home: Path, system: BatchAdapter, allocation: Allocation, *rest: Any, **more: Any) -> int:
        started.append(system)
        return int(system.launch(allocation, "h1", ["agent"])[0] == "jsrun")

    monkeypatch.setattr("hpcdl.allocation.pilot.run_pilot", run_pilot)
    monkeypatch.setenv("PATH", with_commands(tmp_path, "lsf"))
    for name, value in (("LSB_JOBID", "5"), ("LSB_MCPU_HOSTS", "h1 4 h2 4"), ("HPCDL_SITE", "summit")):
        monkeypatch.setenv(name, value)
    blaunch = tmp_path / "blaunch"  # else jsrun would be the only way
    blaunch.write_text("#!/bin/sh\n")
    blaunch.chmod(0o700)
    assert main(["--home", str(tmp_path / "home"), "pilot"]) == 1
    assert [system.kind for system in started] == ["lsf"]


def test_a_batch_job_with_a_wrong_site_file_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCDL_SITE", "nowhere")
    assert main(["--home", str(tmp_path / "home"), "pilot"]) == 1
    assert "there is no site 'nowhere'" in capsys.readouterr().err
