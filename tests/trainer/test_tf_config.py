"""TF_CONFIG for the ranks of one node and of several: which addresses, and how the launchers of a job's nodes meet."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.trainer import tf_config
from tests.support.ports import free_port
from tests.trainer.supervisor import ROOT

SAYS = """
import os, sys
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
with open(f"{sys.argv[1]}/{os.environ['HPCDL_RANK']}", "w") as file:
    file.write(os.environ["TF_CONFIG"] + "\\n" + " ".join(os.environ.get(name, "") for name in names))
"""


def launch(out: Path, ranks: int, **env: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HPCDL_", "CUDA_"))}
    command = [sys.executable, "-m", "hpcdl.trainer.ranks", str(ranks), "--tf-config", "--"]
    command += [sys.executable, "-c", SAYS, str(out)]
    environ |= {"PYTHONPATH": str(ROOT)} | env
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(child: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = child.communicate(timeout=300)
    return child.returncode, output


def told(out: Path, rank: int) -> tuple[list[str], int, str]:
    """The workers, the index, and the variables of launchers that a rank was given."""
    config, rest = (out / str(rank)).read_text().split("\n")
    read = json.loads(config)
    assert read["task"]["type"] == "worker"
    return read["cluster"]["worker"], read["task"]["index"], rest.strip()


def test_on_one_node(tmp_path: Path) -> None:
    assert end(launch(tmp_path, 2)) == (0, "")
    first, second = told(tmp_path, 0), told(tmp_path, 1)
    assert (first[1], second[1]) == (0, 1)
    assert first[0] == second[0]
    assert len(set(first[0])) == 2
    assert all(each.startswith("127.0.0.1:") for each in first[0])
    assert first[2] == "", "nothing is set that was not there"


def test_parameter_servers_on_one_node(tmp_path: Path) -> None:
    """The workers share the GPUs; the coordinator alone is a trainer to hpcdl, one of one rank."""
    script = """
import os, sys
shown = [os.environ.get(name, "-") for name in ("CUDA_VISIBLE_DEVICES", "HPCDL_SOCKET", "HPCDL_LOCAL_RANKS")]
config = os.environ["TF_CONFIG"]
with open(f"{sys.argv[1]}/{os.getpid()}", "w") as file:
    file.write(config + "\\n" + " ".join(shown))
os.rename(file.name, file.name + ".said")
while '"chief","index' in config and len([each for each in os.listdir(sys.argv[1]) if each.endswith(".said")]) < 4:
    pass
"""
    command = [sys.executable, "-m", "hpcdl.trainer.ranks", "2", "--parameter-servers", "1", "--"]
    given = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "HPCDL_SOCKET": "s"}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HPCDL_", "CUDA_"))}
    child = subprocess.run([*command, sys.executable, "-c", script, str(tmp_path)], env=environ | given, timeout=300)
    assert child.returncode == 0
    said = [path.read_text().split("\n") for path in tmp_path.iterdir()]
    configs = [json.loads(config) for config, _ in said]
    assert len({json.dumps(each["cluster"]) for each in configs}) == 1
    cluster = configs[0]["cluster"]
    assert {kind: len(addresses) for kind, addresses in cluster.items()} == {"chief": 1, "worker": 2, "ps": 1}
    assert len({address for addresses in cluster.values() for address in addresses}) == 4
    shown = {(each["task"]["type"], each["task"]["index"]): rest for each, (_, rest) in zip(configs, said, strict=True)}
    assert shown == {
        ("chief", 0): " s 1",
        ("worker", 0): "GPU-a - 2",
        ("worker", 1): "GPU-b - 2",
        ("ps", 0): " - -",
    }


def test_on_two_nodes_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    port = free_port()
    common = {"HPCDL_NODES": "a,b", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    # The second comes first, and is given its place when the first one is there.
    late = launch(tmp_path, 1, **common, HPCDL_NODE_RANK="1", RANK="1", HPCDL_TAG="x:7:2:b")
    early = launch(tmp_path, 2, **common, HPCDL_NODE_RANK="0", RANK="0", HPCDL_TAG="x:7:2:a")
    assert [end(early), end(late)] == [(0, ""), (0, "")]
    every = [told(tmp_path, rank) for rank in range(3)]
    assert [each[1] for each in every] == [0, 1, 2]
    assert len({tuple(each[0]) for each in every}) == 1
    assert len(set(every[0][0])) == 3
    assert [each[2] for each in every] == ["0 3 0 2", "1 3 1 2", "2 3 0 1"]


def test_another_jobs_launcher_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(free_port())
    environ = {"HPCDL_NODES": "a,b", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "HPCDL_NODE_RANK": "0"}
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os; from hpcdl.trainer import tf_config; print(*tf_config.workers(os.environ, 1))",
        ],
        env={**os.environ, **environ, "PYTHONPATH": str(ROOT), "HPCDL_TAG": "x:7:2:a"},
        text=True,
        stdout=subprocess.PIPE,
    )
    monkeypatch.setattr(tf_config, "PATIENCE_S", 0.0)  # one that is turned away does not come again
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()  # says nothing
            break
        except ConnectionRefusedError:
            assert child.poll() is None
    with pytest.raises(tf_config.NoMeeting, match="closed the connection"):
        tf_config.workers(environ | {"HPCDL_NODE_RANK": "1", "HPCDL_TAG": "x:7:1:b"}, 1)
    addresses, first = tf_config.workers(environ | {"HPCDL_NODE_RANK": "1", "HPCDL_TAG": "x:7:2:b"}, 1)
    assert (len(addresses), first) == (2, 1)
    assert child.communicate(timeout=300)[0] == f"{addresses} 0\n"
    assert child.returncode == 0


def test_a_port_of_another_program_is_named(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as other:
        port = str(other.getsockname()[1])
        environ = {"HPCDL_NODES": "a,b", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "HPCDL_NODE_RANK": "0"}
        code, output = end(launch(tmp_path, 1, **environ))
    assert (code, "Traceback" in output) == (os.EX_TEMPFAIL, False)
    assert "ranks: " in output
    assert "in use" in output


def test_nodes_without_an_address_are_refused(tmp_path: Path) -> None:
    code, output = end(launch(tmp_path, 1, HPCDL_NODES="a,b", HPCDL_NODE_RANK="0"))
    assert (code, "MASTER_ADDR" in output, "Traceback" in output) == (os.EX_TEMPFAIL, True, False)
    assert list(tmp_path.iterdir()) == []
