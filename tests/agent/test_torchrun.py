"""torchrun under supervisors: its command line and its port; tests/frameworks/test_elastic.py runs real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent import start_request
from hpcdl.agent.rendezvous import Port
from hpcdl.agent.supervisor.packets import RescalePacket
from hpcdl.core.model.job import JobSpec
from tests.agent.conftest import Agent


def job(*command: str, **keys: Any) -> JobSpec:
    return JobSpec(command, "test", rescale="torchrun", **keys)


def test_the_command_line_of_a_node() -> None:
    membership = RescalePacket(3, ("n2", "n1"), (4, 2), "10.0.0.2:7000")
    line = start_request.torchrun_command(
        job("python3.11", "train.py", "-x", nodes_max=8), membership, "n1", "i-7-2", "10.0.0.1"
    )
    assert line[:3] == ("python3.11", "-c", start_request.TORCHRUN_START)
    assert line[3:-4] == (
        "--nnodes=1:8",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=10.0.0.2:7000",
        "--rdzv-id=i-7-2",
        "--rdzv-conf=is_host=false,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3",
        "--local-addr=10.0.0.1",
        "--monitor-interval=0.3",
        "--max-restarts=1000",
    )
    assert line[-4:] == ("--no-python", "python3.11", "train.py", "-x")
    first = start_request.torchrun_command(
        job("python3.11", "train.py", nodes=2), membership, "n2", "i-7-2", "10.0.0.2"
    )
    assert {"--nnodes=2:2", "--nproc-per-node=4"} < set(first)
    assert [each for each in first if each.startswith("--rdzv-conf=is_host=true,")]


def test_nothing_is_imported_from_the_folder_of_the_job(tmp_path: Path) -> None:
    """Others may be able to write there: what lies beside a job is its command's to import."""
    for name in ("runpy.py", "os.py", "torch.py"):
        (tmp_path / name).write_text("raise SystemExit('planted')")
    modules = tmp_path / "modules" / "torch" / "distributed"
    modules.mkdir(parents=True)
    for folder in (modules, modules.parent):
        (folder / "__init__.py").touch()
    (modules / "run.py").write_text("import sys; print(__name__, sys.argv[1:], sys.path[0])")
    command = [sys.executable, "-c", start_request.TORCHRUN_START, "--nnodes=1"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"__main__ ['--nnodes=1'] {tmp_path / 'modules'}", done.stderr


@pytest.mark.parametrize(
    "command,python",
    [("/opt/venv/bin/python", "/opt/venv/bin/python"), ("python3", "python3"), ("python3.12", "python3.12"),
     ("./train.sh", "python3"), ("python-wrapped", "python3"), ("env", "python3"), ("python3.13t", "python3.13t")],
)  # fmt: skip
def test_whose_torchrun_it_is(command: str, python: str) -> None:
    assert start_request.python_of((command, "train.py"), "/", os.defpath) == python


@pytest.mark.parametrize(
    "first_lines,python",
    [
        ("#!{venv}/bin/python", "{venv}/bin/python"),
        ("#! {venv}/bin/python3.11 -s", "{venv}/bin/python3.11"),
        ("#!/usr/bin/env python3.11", "python3.11"),
        ("#!/usr/bin/env -S python3 -u", "python3"),
        ("#!/bin/sh\n'''exec' {venv}/bin/python \"$0\" \"$@\"\n' '''", "{venv}/bin/python"),
        ("#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\"\n' '''", "/a b/bin/python"),
        ("#!/bin/bash\npython train.py", "python3"),
        ("#!", "python3"),
        ("\x7fELF", "python3"),
    ],
)
def test_torchrun_is_run_by_the_python_of_a_script_of_an_environment(
    tmp_path: Path, first_lines: str, python: str
) -> None:
    """VENV/bin/accelerate: what it imports is what its ranks import. The environment's python is a link."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    script = venv / "bin" / "accelerate"
    script.write_text(first_lines.format(venv=venv) + "\nimport sys\n")
    script.chmod(0o700)
    wanted = python.format(venv=venv)
    assert start_request.python_of((str(script), "launch"), "/", os.defpath) == wanted
    assert start_request.python_of(("bin/accelerate",), str(venv), os.defpath) == wanted, "beside the job"
    assert start_request.python_of(("accelerate",), "/", str(venv / "bin")) == wanted, "in the job's PATH"
    assert start_request.python_of(("env", "A=1", str(script)), "/", os.defpath) == wanted


def test_a_port_is_given_once() -> None:
    first = Port("127.0.0.1")
    ports = [first, *(Port("127.0.0.1") for _ in range(20))]
    assert len({each.address for each in ports}) == len(ports)
    for each in ports:
        each.release()
    with pytest.raises(OSError, match="assign"):
        Port("192.0.2.1")  # nobody's
    six = Port("::1")
    assert six.address.startswith("[::1]:")
    six.release()


@pytest.mark.parametrize(
    "command,code,detail",
    [
        ("./not_there.sh", 127, "command not found: ./not_there.sh"),
        ("no-such-command", 127, "command not found: no-such-command"),
        ("./plain", 126, "cannot start ./plain: Permission denied"),
    ],
)
def test_what_torchrun_cannot_start_is_named(agent: Agent, command: str, code: int, detail: str) -> None:
    (agent.base / "plain").write_text("")
    agent.start(None, argv=("true", "--no-python", command, "--lr", "1"), rescale="torchrun")
    record = agent.exit()
    assert (record["code"], record["detail"]) == (code, detail)
    assert not agent.of("started")
