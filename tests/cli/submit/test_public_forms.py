"""Forms of batch scripts that HPC centres and training repositories publish: their options, with scripts of our own.

What hpcdl does as well is taken, with its sizes; the rest is the batch system's, with the reason in one line.
"""

from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.options import NotForHpcdl
from hpcdl.batch.script import BatchScript
from hpcdl.cli.submit import drop_in

NODES: list[dict[str, Any]] = [
    {"name": f"g{number}", "memory_mib": 515_000, "gpus": [{"name": "NVIDIA A100-SXM4-80GB", "memory_mib": 81920}] * 4}
    for number in (1, 2)
]
HEAD = "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nexport MASTER_PORT=29500\n"
PY = "python train.py --epochs 3"


def sbatch(lines: str, body: str = PY) -> tuple[str, str]:
    return "sbatch", "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines.split("\n")), body, ""])


def bsub(lines: str, body: str = PY) -> tuple[str, str]:
    return "bsub", "\n".join(["#!/bin/bash", *(f"#BSUB {line}" for line in lines.split("\n")), body, ""])


def read(form: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchScript:
    name, text = form
    path = tmp_path / "train.sh"
    path.write_text(text)
    if name == "sbatch":
        return drop_in.batch_of(name, (str(path),), {}, lambda: NODES)
    monkeypatch.setattr("hpcdl.lsf.bsub.read_stdin", lambda: text.encode())
    return drop_in.batch_of(name, (), {}, lambda: NODES)


TAKEN: list[tuple[tuple[str, str], int, int, dict[str, object]]] = [
    (sbatch("-N 1\n--gres=gpu:1\n-c 4\n--mem=16G\n-t 0-01:00\n--mail-type=END"), 1, 1, {"cpus": 4, "time_s": 3600.0}),
    (
        sbatch("--nodes=1\n--ntasks=1\n--gpus-per-task=4\n--cpus-per-task=40", "srun python scripts/train.py"),
        4,
        1,
        {"tasks": 1},
    ),
    (
        sbatch("--nodes=1\n--gres=gpu:2\n--tasks-per-node=2\n-o %x-%j.out", f"srun {PY}"),
        2,
        1,
        {"tasks_per_node": 2, "output": "%x-%j.out"},
    ),
    (
        sbatch(
            "-C gpu\n-q regular\n-N 1\n--ntasks-per-node=4\n--gpus-per-task=1\n--gpu-bind=none\n-A m1", f"srun {PY}"
        ),
        4,
        1,
        {"tasks_per_node": 4},
    ),
    (sbatch('--constraint="gpu&hbm80g"\n-N 2\n--gpus-per-node=4\n--ntasks-per-node=4', f"{HEAD}srun {PY}"), 4, 2, {}),
    (
        sbatch("-N 2\n-C a100\n-G 8\n--ntasks-per-node=1\n--signal=SIGUSR1@90", f"srun {PY}"),
        4,
        2,
        {"signal": ("lightning", 90.0)},
    ),
    (sbatch("--gres=gpu:a100:4\n--exclusive\n-p gpu"), 4, 1, {}),
    (
        sbatch("--gpus=a100-80:2\n-p GPU-shared\n-o job-%A-%a.out\n-e job-%A-%a.err\n--array=0-3%2"),
        2,
        1,
        {"error": "job-%A-%a.err"},
    ),
    (
        sbatch(
            "--partition=booster\n--account=x\n--nodes=2\n--gres=gpu:4\n--ntasks-per-node=4\n--cpus-per-task=12",
            f"{HEAD}srun --cpu-bind=none --label {PY}",
        ),
        4,
        2,
        {"cpus": 48},
    ),
    (
        sbatch(
            "--nodes=2\n--ntasks=2\n--gres=gpu:1",
            f"{HEAD}srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 1 \\\n"
            "  --rdzv_id $RANDOM --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500 train.py",
        ),
        1,
        2,
        {"tasks": 2},
    ),
    (
        sbatch(
            "-N 2\n--gres=gpu:2",
            "torchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID \\\n"
            " --rdzv-endpoint=$MASTER_ADDR:29400 train.py",
        ),
        2,
        2,
        {},
    ),
    (sbatch("--gres=gpu:4\n--ntasks-per-node=1", "torchrun --standalone --nproc_per_node=gpu train.py"), 4, 1, {}),
    (sbatch("--gres=gpu:4", "accelerate launch --multi_gpu --num_processes 4 train.py"), 4, 1, {}),
    (sbatch("--gres=gpu:4", "deepspeed --num_gpus 4 train.py --deepspeed ds.json"), 4, 1, {}),
    (sbatch("--gpus-per-node=2\n-n 2", "horovodrun -np 2 -H localhost:2 python train.py"), 2, 1, {"tasks": 2}),
    (sbatch("--gpus-per-node=2\n-n 2", "mpirun -np 2 python train.py"), 2, 1, {}),
    (sbatch("--gpus-per-node=a100:1\n--mem-per-cpu=4G", "module load python\nsource $SLURM_TMPDIR/v\n" + PY), 1, 1, {}),
    (
        sbatch("--account=def-x\n--gpus=1\n--cpus-per-gpu=12\n--mem-per-gpu=64G"),
        1,
        1,
        {"cpus": 12, "memory_mib": 65536},
    ),
    (
        sbatch("-p gpu\n--gpus-per-node=a100:2\n--time=24:00:0\n--mem 240G"),
        2,
        1,
        {"time_s": 86400.0, "memory_mib": 245760},
    ),
    (
        sbatch(
            "--array=1-10%2\n--gres=gpu:1\n--requeue\n--open-mode=append\n-o logs/%A_%a.log",
            "python train.py --fold $SLURM_ARRAY_TASK_ID",
        ),
        1,
        1,
        {"append": True},
    ),
    (
        sbatch(
            "--gres=gpu:1\n--requeue\n--signal=B:USR1@120",
            "trap 'scontrol requeue $SLURM_JOB_ID' USR1\n" + PY + " &\nwait",
        ),
        1,
        1,
        {"signal": ("lightning", 120.0)},
    ),
    (sbatch("--gres=gpu:1\n--signal=B:TERM@300"), 1, 1, {"signal": ("hf", 300.0)}),
    (sbatch("--gres=gpu:1\n--signal=12@60"), 1, 1, {"signal": ("submitit", 60.0)}),
    (sbatch("--nodes=1\n--exclusive\n--ntasks-per-node=4", f"srun --gres=gpu:4 {PY}"), 4, 1, {}),
    (
        sbatch(
            "--nodes=2\n--ntasks-per-node=4\n--gpus-per-node=4\n--export=ALL,A=1",
            "srun --ntasks-per-node=1 --export=ALL bash -c 'torchrun --nnodes 2 --node_rank $SLURM_NODEID train.py'",
        ),
        4,
        2,
        {},
    ),
    (
        sbatch(
            "--gres=gpu:4\n-n 4", "for i in 0 1 2 3; do srun --exclusive -n1 --gres=gpu:1 python a.py $i & done; wait"
        ),
        4,
        1,
        {},
    ),
    (
        sbatch(
            "--nodes=2\n--gres=gpu:4\n--ntasks-per-node=4\n--cpus-per-task=6\n--wait-all-nodes=1\n--partition PART",
            f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{HEAD}srun --cpu_bind=v --accel-bind=gn {PY}",
        ),
        4,
        2,
        {"cpus": 24},
    ),
    (
        sbatch("-N 2\n-t 0:10:00", f"srun -N2 --ntasks-per-node=4 -c7 --gpus-per-task=1 --gpu-bind=closest {PY}"),
        4,
        2,
        {},
    ),
    (
        sbatch("--ntasks 2\n--tres-per-task=cpu:3,gres/gpu:1\n--mem-per-gpu=10G", f"srun --exact {PY}"),
        2,
        1,
        {"cpus": 6, "memory_mib": 20480},
    ),
    (sbatch("--ntasks 2\n--tres-per-task gres/gpu:a100=2", f"srun {PY}"), 4, 1, {"tasks": 2}),
    (sbatch("--gpus=1\n--gres=gpumem:40g\n--prefer=nvlink\n--oom-kill-step=1\n--network=sn_single_vni"), 1, 1, {}),
    (sbatch('--gres=gpu:1\n--constraint="a100&(hbm80g|hbm40g)"'), 1, 1, {}),
    (sbatch("--gres=gpu:4", "export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --nproc_per_node 4 train.py"), 4, 1, {}),
    (sbatch("-G 1\n-c 8", "singularity exec --nv image.sif python train.py"), 1, 1, {}),
    (sbatch("--gres=gpu:ampere:1\n--ntasks-per-gpu=1"), 1, 1, {"tasks_per_node": 1}),
    (
        sbatch(
            "--gpus-per-node=4\n--nodes=1\n--switches=1\n--hint=nomultithread", f"srun -l -u --kill-on-bad-exit {PY}"
        ),
        4,
        1,
        {},
    ),
    (
        bsub(
            '-gpu "num=1:mode=exclusive_process"\n-n 4\n-R "span[hosts=1]"\n-R "rusage[mem=4GB]"\n-W 24:00\n-q gpuv100'
        ),
        1,
        1,
        {"time_s": 86400.0},
    ),
    (
        bsub(
            '-gpu "num=2:mode=exclusive_process:j_exclusive=yes"\n-oo gpu_%J.out\n-eo gpu_%J.err\n-B\n-N\n-u me@x.org'
        ),
        2,
        1,
        {"output": "gpu_%J.out", "error": "gpu_%J.err", "append": False},
    ),
    (bsub('-R "select[ngpus>0] rusage[ngpus_excl_p=1]"\n-n 1\n-M 8GB'), 1, 1, {}),
    (bsub('-R "rusage[mem=4500,ngpus_excl_p=2]"\n-R "select[gpu_model0==A100]"\n-n 8\n-R span[hosts=1]'), 2, 1, {}),
    (bsub('-R "rusage[ngpus_excl_p=1]"\n-n 4'), 1, 1, {}),
    (bsub('-gpu "num=1:gmodel=NVIDIAA100_SXM4_80GB:gmem=40G"\n-J "net[1-5]%2"\n-o out.%J.%I'), 1, 1, {"append": True}),
    (bsub('-nnodes 2\n-P abc123\n-W 2:00\n-alloc_flags "smt4 nvme"', "jsrun -n 8 -a 1 -g 1 -c 7 -r 4 " + PY), 4, 2, {}),
    (
        bsub("-nnodes 1\n-P abc\n-q batch", "jsrun --nrs 4 --tasks_per_rs 1 --gpu_per_rs 1 --cpu_per_rs 7 " + PY),
        4,
        1,
        {},
    ),
    (bsub("-nnodes 2\n-P abc", "jsrun -n ALL_HOSTS -r1 -a1 -g4 -bpacked:28 " + PY), 4, 2, {}),
    (bsub('-gpu num=2\n-R a100\n-R "rusage[mem=4000/host]"\n-R span[hosts=1]\n-Ne'), 2, 1, {}),
    (bsub("-gpu num=1\n-R 'gpuhost rusage[mem=16GB:duration=5m] span[hosts=1]'"), 1, 1, {}),
    (
        bsub(
            "-qgpu-normal\n-J'fit[1-2]'\n-n1\n-M4000\n-W1:00\n-R'select[mem>4000] rusage[mem=4000] span[hosts=1]'\n"
            "-gpu'mode=shared:num=1:gmem=6000'\n-olog.%J.%I.out\n-elog.%J.%I.err"
        ),
        1,
        1,
        {"name": "fit", "output": "log.%J.%I.out", "error": "log.%J.%I.err", "time_s": 3600.0},
    ),
    (bsub('-gpu "num=2:j_exclusive=yes:gvendor=nvidia:glink=yes:gpack=yes:gmem=40.5G"'), 2, 1, {}),
    (bsub("-gpu num=4 -n 4 -R span[hosts=1]", "mpirun -np 4 python hvd.py"), 4, 1, {"tasks": 4}),
    (bsub("-gpu num=2 -n 2 -R span[ptile=1]", "jsrun -n 2 -r 1 -a 1 -g 2 " + PY), 2, 2, {"tasks": 2}),
]

PASSED: list[tuple[tuple[str, str], str]] = [
    (sbatch("-N 1\n-n 24\n--mem=150G"), "it asks for no GPU"),
    (sbatch("-C gpu\n-N 4\n--ntasks-per-node=1", f"srun -C gpu {PY}"), "it asks for no GPU"),
    (bsub("-n 4\n-W 1:00"), "it asks for no GPU"),
    (sbatch("-G1\n-C haswell"), "-C haswell: not every node of hpcdl is so"),
    (sbatch("--gres=gpu:h100:1"), "the type h100 of --gres=gpu:h100:1: not every node of hpcdl is so"),
    (bsub('-gpu "num=1:gmodel=TeslaV100"'), "gmodel=TeslaV100"),
    (bsub('-gpu num=1\n-R "select[ngpus>=8]"'), "select[ngpus>=8]"),
    (bsub('-gpu num=1\n-m "host1 host2"'), "-m host1 host2: not every node of hpcdl is so"),
    (sbatch("-N 2\n--gres=gpu:4"), "starts the script on each node"),
    (sbatch("-N 2\n--gpus-per-node=4", "mpirun -n 8 python hvd.py"), "mpirun gets nothing"),
    (sbatch("-N 2\n--gres=gpu:4", "deepspeed --hostfile h train.py"), "deepspeed gets nothing"),
    (
        sbatch("-N 2\n--gres=gpu:4", "for n in a b; do ssh $n torchrun --nnodes 2 x.py & done; srun hostname"),
        "ssh gets nothing",
    ),
    (sbatch("--gres=gpu:4\n-n4", "ibrun python train.py"), "ibrun gets nothing"),
    (sbatch("--gres=gpu:1", "srun --pty bash"), "--pty"),
    (sbatch("-N1\n--gpus-per-node=4", f"srun --container-image=nvcr.io#x {PY}"), "--container-image"),
    (sbatch("--gres=gpu:1\nhetjob\n-n 1 --gres=gpu:2"), "hpcdl has no heterogeneous jobs"),
    (sbatch("--gres=gpu:1", "srun -n1 a : -n2 b"), "heterogeneous job"),
    (sbatch("--gres=gpu:2\n--reservation=course"), "--reservation=course"),
    (sbatch("--gres=gpu:2\n-w node[1-2]"), "-w node[1-2]"),
    (sbatch("--gres=gpu:1\n--signal=INT@60"), "USR1, USR2, TERM or TSTP"),
    (sbatch("--gres=gpu:1\n--begin=now+1hour"), "--begin"),
    (sbatch("-n 2\n--tres-per-task=gres/gpu:1,license/x:1"), "license/x:1 would be ignored: hpcdl has no such thing"),
    (sbatch("--gres=gpu:1\n--mem=2T"), "it asks for 2048 GiB of memory on a node, and the largest of hpcdl has 503"),
    (sbatch("--gpus=1\n--gres=gpumem:90g"), "gpumem:90g of --gres=gpumem:90g: not every node of hpcdl is so"),
    (sbatch('--gres=gpu:1\n-C "h100&(hbm80g|hbm40g)"'), "not every node of hpcdl is so"),
    (
        sbatch("--gres=gpu:2", "for i in 0 1; do CUDA_VISIBLE_DEVICES=$i python a.py $i & done; wait"),
        "train.sh:3: CUDA_VISIBLE_DEVICES=$i takes GPUs by their numbers: those may be another job's",
    ),
    (bsub('-gpu "num=1:gmem=90.5G"'), "gmem=90.5G of -gpu num=1:gmem=90.5G: not every node"),
    (bsub('-gpu "num=1:gmem=much"'), "gmem=much"),
    (bsub("-gpu num=1\n-R v100"), '"v100" of -R: not every node of hpcdl is so'),
    (bsub('-gpu num=1\n-R "rusage[lic=1]"'), '"rusage[lic=1]" of -R'),
    (bsub("-gpu num=1\n-a 'docker(image)'"), "-a docker(image) would be ignored: hpcdl has no such thing"),
    (sbatch("--gres=gpu:1,nvme:100"), "nvme of --gres"),
    (sbatch("--gres=gpu:1\n--time=soon"), "'soon' is no time"),
    (bsub("-gpu num=1/task -n 4"), "/task"),
    (bsub("-gpu num=1 -n 4", "mpirun -np 4 python hvd.py"), "it does not say on how many nodes"),
    (bsub("-gpu num=1 -n 8 -R span[ptile=4]", "blaunch -z a python x.py"), "blaunch gets nothing"),
    (bsub("-nnodes 2", "jsrun -n $NODES -g 6 " + PY), "it asks for no GPU"),
]


def test_as_many_forms_as_there_are_to_be() -> None:
    assert len(TAKEN) >= 40
    assert len(PASSED) >= 20


@pytest.mark.parametrize("form, gpus, nodes, more", TAKEN, ids=[f"{i}" for i in range(len(TAKEN))])
def test_what_is_taken(
    form: tuple[str, str],
    gpus: int,
    nodes: int,
    more: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = read(form, tmp_path, monkeypatch).asked
    assert (asked.gpus, asked.nodes or 1) == (gpus, nodes)
    assert {name: getattr(asked, name) for name in more} == more


@pytest.mark.parametrize("form, why", PASSED, ids=[why[:30] for _, why in PASSED])
def test_what_is_passed_on_and_why(
    form: tuple[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotForHpcdl) as error:
        read(form, tmp_path, monkeypatch)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_where_a_script_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With srun or jsrun on the first node only, which starts the others' tasks."""
    scripts = [read(form, tmp_path, monkeypatch) for form, _, nodes, _ in TAKEN if nodes == 2]
    found = [batch.command.tasks_of(batch, 2) for batch in scripts]
    first = [each.first_only for each in found if each is not None]
    assert first.count(False) == 1  # torchrun on each node
    assert len(first) == 11
    mentions = read(sbatch("-G1", "cp x $SLURM_TMPDIR"), tmp_path, monkeypatch)
    tasks = mentions.command.tasks_of(mentions, 1)
    assert tasks is not None
    assert tasks.scratch == "SLURM_TMPDIR"
