"""hpcdl from Python, with a real daemon: every example of docs/python.md, the notebook, and how jobs end."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from traitlets.config import Config

import hpcdl
from hpcdl.python.executor import JobFuture
from tests.support import functions
from tests.support.apptainer import stand_in
from tests.system.cluster import PATIENCE_S, Cluster

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(?:# (?P<file>\w+\.py)\n)?(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(kept_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The daemon that `hpcdl` talks with, and a folder of the test's own. No thread is left."""
    monkeypatch.setenv("HPCDL_HOME", str(kept_cluster.home))
    monkeypatch.chdir(tmp_path)
    yield kept_cluster
    for thread in threading.enumerate():
        if thread.name == "hpcdl-jobs":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_the_examples_of_the_document(here: Cluster, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    script = ""
    for block in BLOCK.finditer(text):
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["text"])
        else:
            script += block["text"]
    assert len(script.splitlines()) > 40
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{here.story()}"
    assert "ValueError" in done.stdout or "TypeError" in done.stdout
    assert "{'lr': 0.1, 'loss': 0.729" in done.stdout


def test_the_notebook(here: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(ROOT / "docs" / "python.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "it is kept without outputs"
    work = tmp_path / "work"
    work.mkdir()
    patience_s = int(PATIENCE_S)
    with tempfile.TemporaryDirectory(prefix="hpcdl-", dir="/tmp") as short:  # names of sockets end at 107 bytes
        # Sockets rather than ports, which another test could take between their choice and their use.
        config = Config({"ConnectionFileMixin": {"transport": "ipc", "ip": f"{short}/k"}})
        client = nbclient.NotebookClient(
            notebook, kernel_name="python3", config=config, resources={"metadata": {"path": str(work)}},
            timeout=patience_s, startup_timeout=patience_s,
        )  # fmt: skip
        client.execute()
    printed = json.dumps([cell.get("outputs") for cell in notebook.cells])
    assert "'loss': 0.729" in printed
    assert "SubmitError" in printed


def test_how_jobs_end(here: Cluster) -> None:
    raised, exited, cancelled, unkept = (
        hpcdl.submit(functions.fail, "no data"),
        hpcdl.submit([sys.executable, "-c", "raise SystemExit(3)"]),
        hpcdl.submit(["sleep", "1000"]),
        hpcdl.submit(functions.give_what_is_no_json),
    )
    cancelled.cancel()
    with pytest.raises(hpcdl.FunctionRaised, match="raised ValueError: no data") as caught:
        raised.result(PATIENCE_S)
    assert (caught.value.type, caught.value.message, caught.value.exit_code) == ("ValueError", "no data", 1)
    assert "in fail" in caught.value.traceback
    assert caught.value.traceback in caught.value.__notes__[0]
    assert caught.value.job is raised
    with pytest.raises(hpcdl.JobFailed, match=f"job {exited.id} failed: ") as failed:
        exited.result(PATIENCE_S)
    assert failed.value.exit_code == 3
    with pytest.raises(hpcdl.JobCancelled, match=f"job {cancelled.id} was cancelled"):
        cancelled.result(PATIENCE_S)
    with pytest.raises(hpcdl.ResultError, match="returned what JSON does not have"):
        unkept.result(PATIENCE_S)
    with pytest.raises(hpcdl.ApiError) as over:
        unkept.cancel()
    assert over.value.code == "finished"


def test_a_wait_has_its_time(here: Cluster) -> None:
    job = hpcdl.submit(["sleep", "1000"], hold=True)
    with pytest.raises(TimeoutError, match=f"job {job.id} is .* after 0.1 s"):
        job.wait(0.1)
    job.cancel()
    assert job.wait(PATIENCE_S) == "CANCELLED"
    assert job.logs() == ""


def test_an_executor(here: Cluster) -> None:
    with hpcdl.Executor(gpus=1) as pool:
        found = [pool.submit(functions.double, each) for each in (1, 2)]
        bad = pool.submit(functions.fail, "x")
        every: list[futures.Future[Any]] = [*found, bad]
        ended = list(futures.as_completed(every, PATIENCE_S))
        assert {each.result() for each in ended if each is not bad} == {2, 4}
        assert isinstance(bad.exception(), hpcdl.FunctionRaised)
        assert list(pool.map(functions.double, [1, 2, 3], timeout=PATIENCE_S)) == [2, 4, 6]
        assert list(pool.map(functions.double, [])) == []
        assert found[0].running() is False
        assert found[0].cancel() is False
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(functions.double, 1)


def test_an_executor_cancels(here: Cluster) -> None:
    pool = hpcdl.Executor(gpus=4)
    first = pool.submit(functions.wait_for_ever)
    here.until_state(first.job.id, "RUNNING")
    assert first.running()
    later: list[JobFuture[None]] = [pool.submit(functions.wait_for_ever) for _ in range(2)]
    pool.shutdown(wait=False, cancel_futures=True)
    assert [each.cancelled() for each in (first, *later)] == [False, True, True]
    assert first.cancel()
    assert first.cancel()
    assert not futures.wait([first, *later], PATIENCE_S).not_done
    assert [each.job.wait(PATIENCE_S) for each in (first, *later)] == ["CANCELLED"] * 3
    with pytest.raises(futures.CancelledError):
        first.result()


def test_jobs_can_be_awaited(here: Cluster) -> None:
    async def both() -> list[int]:
        jobs = hpcdl.map(functions.double, {"number": [3, 4]})
        found = await asyncio.gather(*jobs)
        with pytest.raises(hpcdl.FunctionRaised):
            await hpcdl.submit(functions.fail, "x")
        return found

    assert asyncio.run(both()) == [6, 8]


def test_nothing_is_installed_where_it_trains(here: Cluster, tmp_path: Path) -> None:
    """The agent brings the trainer library, and the function's own folder is on the path."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    (tmp_path / "where.py").write_text((ROOT / "tests" / "support" / "functions.py").read_text())
    script = (
        "import hpcdl, json, where, sys; print(json.dumps(hpcdl.submit(where.say_where, python=sys.argv[1]).result()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(bare / "bin" / "python")],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr}\n{here.story()}"
    said = json.loads(done.stdout)
    assert (said["prefix"], said["installed"], said["steps"]) == (str(bare), [], "hpcdl.trainer.loop")
    assert Path(said["hpcdl"]).is_relative_to(here.home / "run")
    assert said["submit"].startswith(f"there is no hpcdl.submit here: {bare}/bin/python has no hpcdl installed")


def test_a_function_in_a_container(here: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apptainer is a stand-in; all else is as in a container."""
    place = stand_in(tmp_path / "bin")
    (place / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "torch.sif").touch()
    job = hpcdl.submit(functions.double, 4, container="torch.sif")
    assert job.result(PATIENCE_S) == 8
    said = json.loads((place / "said.json").read_text())
    assert said["image"] == str(tmp_path / "torch.sif")
    assert str(here.home / "checkpoints" / str(job.id)) in said["binds"]
    assert [each for each in said["binds"] if Path(each).parent == here.home / "calls"]
    assert [each for each in said["binds"] if Path(each).name == f"{job.id}.1"], "the side channel"
    assert [each for each in said["binds"] if "trainer-library" in each]
    assert job.name == "double"


def test_nobody_answers_any_more(here: Cluster, tmp_path: Path) -> None:
    future: futures.Future[None] = futures.Future()
    from hpcdl.python.executor import follow

    follow(hpcdl.Job(1, tmp_path / "nowhere"), future)
    assert isinstance(future.exception(PATIENCE_S), hpcdl.DaemonAway)
