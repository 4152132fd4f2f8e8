"""Which commands start ranks themselves, and where hpcdl refuses them."""

from typing import Any

import pytest

from hpcdl.core.model.job import JobSpec
from hpcdl.core.rules.launchers import check_launcher, launcher_in, launcher_of, shell_script


@pytest.mark.parametrize(
    "command,launcher",
    [
        ("torchrun --nproc-per-node 2 x.py", "torchrun"),
        ("/opt/venv/bin/torchrun x.py", "torchrun"),
        ("env A=1 B=2 torchrun x.py", "torchrun"),
        ("nice -n 5 timeout 3h stdbuf -oL torchrun x.py", "torchrun"),
        ("conda run -n ml torchrun x.py", "torchrun"),
        ("python -m torch.distributed.run x.py", "python -m torch.distributed.run"),
        ("python3.11 -u -m torch.distributed.launch --use-env x.py", "python -m torch.distributed.launch"),
        ("python -mtorch.distributed.run x.py", "python -m torch.distributed.run"),
        ("accelerate launch --num_processes 2 x.py", "accelerate launch"),
        ("python -m accelerate.commands.launch x.py", "python -m accelerate.commands.launch"),
        ("deepspeed --num_gpus 2 x.py", "deepspeed"),
        ("mpirun -np 4 python x.py", "mpirun"),
        ("python x.py --launcher torchrun", ""),
        ("python torchrun.py", ""),
        ("python -m mine torchrun", ""),
        ("accelerate env", ""),
        ("bash train.sh torchrun", ""),
        ("python -c torchrun", ""),
        ("./mine", ""),
    ],
)
def test_the_launcher_of_a_command(command: str, launcher: str) -> None:
    assert launcher_of(command.split()) == launcher


@pytest.mark.parametrize(
    "script,launcher",
    [
        ("torchrun x.py", "torchrun"),
        ("cd a && OMP_NUM_THREADS=1 torchrun --nproc-per-node $N x.py | tee log", "torchrun"),
        ("#!/bin/bash\nset -e\nsource venv/bin/activate\nexec torchrun \\\n  --nproc-per-node 2 x.py", "torchrun"),
        ("if true; then python -m torch.distributed.run x.py; fi", "python -m torch.distributed.run"),
        ("out=$(accelerate launch x.py)", "accelerate launch"),
        ("bash -c 'torchrun x.py'", "torchrun"),
        ("# torchrun x.py\necho torchrun.py\npython x.py # torchrun", ""),
        ("python x.py --with 'an unclosed quote", ""),
        ("", ""),
    ],
)
def test_the_launcher_in_a_script(script: str, launcher: str) -> None:
    assert launcher_in(script) == launcher
    assert launcher_of(("bash", "-lc", script)) == launcher
    assert launcher_of(("env", "A=1", "/bin/sh", "-e", "-c", script)) == launcher


@pytest.mark.parametrize(
    "command,file",
    [("bash train.sh a", "train.sh"), ("env A=1 bash -x t.sh", "t.sh"), ("bash -c x", ""), ("python x.py", "")],
)
def test_the_script_that_a_shell_runs(command: str, file: str) -> None:
    assert shell_script(command.split()) == file


def spec(command: str, **keys: Any) -> JobSpec:
    return JobSpec(tuple(command.split()), "test", **keys)


@pytest.mark.parametrize("keys", [{"nodes_max": 2, "rescale": "torchrun"}, {"rescale": "torchrun"},
                                  {"nodes": 2, "nodes_max": 4, "rescale": "in-process"}])  # fmt: skip
def test_a_launcher_within_ours_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hpcdl starts .* itself on every node.* torchrun in the command would nest"):
        check_launcher(spec("torchrun --nproc-per-node 2 x.py", **keys))
    with pytest.raises(ValueError, match="leave it out"):
        check_launcher(spec("bash train.sh", **keys), "torchrun x.py")
    check_launcher(spec("python x.py", **keys), "python y.py")


def test_on_one_node_it_may_stay() -> None:
    check_launcher(spec("torchrun --standalone --nproc-per-node 2 x.py", gpus_min=2, gpus_max=2))


def test_on_a_fixed_number_of_nodes_it_must_look_for_the_others() -> None:
    alone = r"a training of its own on each of 2 nodes: leave "
    with pytest.raises(ValueError, match=alone + r"--standalone out.*or add --rescale torchrun"):
        check_launcher(spec("torchrun --standalone --nproc-per-node 2 x.py", nodes=2))
    with pytest.raises(ValueError, match=alone + r"it out.*or add --rescale torchrun"):
        check_launcher(spec("accelerate launch x.py", nodes=2))
    with pytest.raises(ValueError, match=alone):
        check_launcher(spec("bash train.sh", nodes=2), "torchrun --standalone x.py")
    check_launcher(spec("torchrun --nproc-per-node 2 x.py", nodes=2))  # by the variables that hpcdl sets
    check_launcher(spec("torchrun --nnodes 2 --rdzv-endpoint n1:29500 x.py", nodes=2))
    check_launcher(spec("bash train.sh", nodes=2), "torchrun --nnodes=2 --master_addr $HEAD x.py")
    check_launcher(spec("python x.py", nodes=2))
