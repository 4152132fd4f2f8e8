"""Several ranks on one node: how they are started, and how they end."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpcdl.trainer import ranks
from tests.support.waiting import until
from tests.trainer.supervisor import ROOT


def start(*argv: str, **env: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HPCDL_", "CUDA_"))}
    command = [sys.executable, "-m", "hpcdl.trainer.ranks", *argv]
    environ |= {"PYTHONPATH": str(ROOT)} | env
    return subprocess.Popen(command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def run(*argv: str, **env: str) -> tuple[int, str]:
    with start(*argv, **env) as child:
        output, _ = child.communicate(timeout=180)
    return child.returncode, output


def test_each_has_its_part() -> None:
    script = (
        'echo "$HPCDL_LOCAL_RANK/$HPCDL_LOCAL_RANKS $HPCDL_RANK $HPCDL_GPUS $CUDA_VISIBLE_DEVICES $HPCDL_GPU_COUNT"'
    )
    four = {"HPCDL_GPUS": "GPU-a,GPU-b,GPU-c,GPU-d", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d"}
    code, output = run("2", "--", "sh", "-c", script, **four, HPCDL_GPU_COUNT="4")
    assert code == 0
    assert sorted(output.splitlines()) == [
        "0/2 0 GPU-a,GPU-b GPU-a,GPU-b 2",
        "1/2 1 GPU-c,GPU-d GPU-c,GPU-d 2",
    ]
    code, output = run("gpu", "--", "sh", "-c", script, **four)
    assert sorted(output.splitlines())[3] == "3/4 3 GPU-d GPU-d 1"
    code, output = run("gpu", "--", "sh", "-c", script, CUDA_VISIBLE_DEVICES="")
    assert output.strip() == "0/1 0"


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 64, "usage"),
        (["2", "true"], 64, "usage"),
        (["2", "--"], 64, "usage"),
        (["--", "true"], 64, "usage"),
        (["2", "--tf", "--", "true"], 64, "usage"),
        (["0", "--", "true"], 64, "from 1 to"),
        (["x", "--", "true"], 64, "or gpu"),
        (["2", "--parameter-servers", "--", "true"], 64, "usage"),
        (["2", "--parameter-servers", "0", "--", "true"], 64, "'0' parameter servers: say a number from 1 to"),
        (["3", "--", "true"], 64, "cannot be shared out equally among 3 ranks"),
        (["2", "--", "./is-not-there"], 127, "is-not-there: No such file"),
        (["2", "--", "/"], 126, "cannot start /"),
    ],
)
def test_what_makes_no_sense(argv: list[str], code: int, words: str) -> None:
    got, output = run(*argv, HPCDL_GPUS="GPU-a,GPU-b")
    assert (got, words in output) == (code, True), output


def test_the_first_failure_counts_and_ends_the_others() -> None:
    script = 'if [ "$HPCDL_LOCAL_RANK" = 2 ]; then exit 5; fi; exec sleep 1000'
    assert run("3", "--", "sh", "-c", script)[0] == 5
    assert run("3", "--", "sh", "-c", script.replace("exit 5", "kill -KILL $$"))[0] == 128 + signal.SIGKILL
    assert run("2", "--", "true") == (0, "")


def test_sigterm_goes_to_the_ranks_which_may_take_their_time() -> None:
    script = "trap 'echo done; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    with start("2", "--", "sh", "-c", script) as child:
        assert child.stdout is not None
        assert [child.stdout.readline(), child.stdout.readline()] == ["ready\n"] * 2
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=180)
    assert (child.returncode, output) == (0, "done\n" * 2)


def test_servers_serve_until_their_coordinator_ends() -> None:
    """However it ends; a SIGTERM is first its alone."""
    led = ("2", "--parameter-servers", "1", "--")
    script = 'if [ -z "$HPCDL_LOCAL_RANKS" ] || [ "$HPCDL_LOCAL_RANKS" = 2 ]; then exec sleep 1000; fi; '
    assert run(*led, "sh", "-c", script + "exit 0") == (0, "")
    assert run(*led, "sh", "-c", script + "exit 5") == (5, "")
    killed = script.replace("exec sleep 1000", "kill -KILL $$")
    assert run(*led, "sh", "-c", killed + "exec sleep 1000")[0] == 128 + signal.SIGKILL
    loop = "echo ready; while :; do sleep 0.05; done"
    serves = script.replace("exec sleep 1000", f"trap 'echo ended; exit 0' TERM; {loop}")
    with start(*led, "sh", "-c", f"{serves} trap 'sleep 0.2; echo saved; exit 0' TERM; {loop}") as child:
        assert child.stdout is not None
        assert [child.stdout.readline() for _ in range(4)] == ["ready\n"] * 4
        child.send_signal(signal.SIGTERM)
        output, _ = child.communicate(timeout=180)
    assert (child.returncode, output) == (0, "saved\n" + "ended\n" * 3)


def test_a_sigterm_while_they_are_being_started_reaches_all() -> None:
    script = "trap 'exit 0' TERM; [ $HPCDL_LOCAL_RANK = 0 ] && kill -TERM $PPID; while :; do sleep 0.05; done"
    code, _ = run("4", "--", "sh", "-c", script)
    assert code in (0, 128 + signal.SIGTERM)  # the latter where one was told before it could set its trap


def test_none_is_orphaned() -> None:
    with start("2", "--", "sh", "-c", "echo $$; exec sleep 1000") as child:
        assert child.stdout is not None
        pids = [int(child.stdout.readline()) for _ in range(2)]
        child.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() and alive(pid) for pid in pids), "ranks that end, too")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_for_each_gpu() -> None:
    assert ranks.parse(["gpu", "--", "x"], {"CUDA_VISIBLE_DEVICES": "0,1"}) == (2, "", ["x"])
    assert ranks.parse(["gpu", "--", "x"], {}) == (1, "", ["x"])
    assert ranks.parse(["3", "--tf-config", "--", "x", "--"], {}) == (3, ranks.TF_CONFIG, ["x", "--"])


STATES = """
import os, random, torch, torch.distributed as dist
from types import SimpleNamespace
from hpcdl.trainer.group import broadcast, process_groups
from hpcdl.trainer.group.in_place import Training
from hpcdl.trainer.torch import Values
rank = int(os.environ["HPCDL_LOCAL_RANK"])
broadcast.PIECE = 64

class Part:
    def __init__(self): self.state = None
    def state_dict(self): return self.state
    def load_state_dict(self, state): self.state = state

def states(k):
    one = torch.arange(40, dtype=torch.float64).reshape(5, 8) * k
    return {
        "views": one.t(), "scalar": torch.tensor(k), "flags": torch.tensor([True, False, k > 1]), "none": None,
        "half": torch.ones(3, dtype=torch.bfloat16) * k, "empty": torch.zeros(0, 4), 5: (k, [one[:, 1]], {"x": 0.5}),
    }

def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a == b

part, model = Part(), torch.nn.BatchNorm1d(3)
part.state = states(rank)
group = process_groups.ProcessGroup(None, dist.FileStore(os.environ["HPCDL_LOCAL_STORE"], 3), rank, 3, 60)
if rank == 2:
    model(torch.randn(4, 3))
more = broadcast.share({"part": part, "model": model}, f"from {rank}", 2, rank == 1)
assert more == "from 2", more
assert equal(part.state, states(0 if rank == 0 else 2)), part.state
assert int(model.num_batches_tracked) == (0 if rank == 0 else 1)
own = {"sums": Values(running=float(rank)), "generator": random.Random(rank)}
training = SimpleNamespace(parts={"part": part, **own}, step=rank, session=SimpleNamespace(rank=rank))
Training.spread(training, 2, rank == 1, "")
source = 2 if rank == 1 else rank
assert (training.step, own["sums"].running) == (source, source), vars(own["sums"])
assert own["generator"].random() == random.Random(source).random()
group.dissolve()
os.write(1, b"shared\\n")
"""


def test_states_are_shared(tmp_path: Path) -> None:
    """All kinds of state go from one rank to those that take it, and past those that do not."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    script = tmp_path / "states.py"
    script.write_text(STATES)
    assert run("3", "--", sys.executable, str(script), OMP_NUM_THREADS="1") == (0, "shared\n" * 3)
