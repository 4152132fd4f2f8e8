"""What starts processes in a batch script, by its text."""

import pytest

from hpcdl.batch.launches import calls_jsrun, code_of, doubts, gpus_on_each, starts_tasks, stays, with_own_gpus


def test_comments_and_continued_lines() -> None:
    text = "#!/bin/sh\n# srun a\nsrun -n 2 \\\n  --gpus-per-task=1 \\\n  python x.py # srun --pty\necho done\n"
    assert code_of(text).split("\n")[:6] == [
        "", "", "srun -n 2    --gpus-per-task=1    python x.py", "", "", "echo done"
    ]  # fmt: skip
    assert starts_tasks(text)
    assert not calls_jsrun(text)
    assert not starts_tasks("# srun x\necho $srun_opts my-srun ./srun.py")


BY_NUMBERS = "takes GPUs by their numbers: those may be another job's"
ONE_RANK = (
    "would be the rank of each node: a batch system starts the script on the first only: say $HPCDL_NODE_RANK there, "
    "or start it by srun"
)


@pytest.mark.parametrize(
    "script, nodes, said",
    [
        ("srun python x.py", 1, []),
        ("srun --label -n4 python x.py & wait", 2, []),
        ("LAUNCH='srun -N2'\n$LAUNCH python x.py", 2, []),
        ("srun torchrun --nnodes 2 x.py", 2, []),
        ("torchrun --nnodes $SLURM_NNODES --rdzv-endpoint h:1 x.py", 2, []),
        ("mpirun -np 4 python x.py", 1, []),
        ("python x.py", 1, []),
        ("python x.py", 2, ["train.sh:2: -N 2 starts the script on each node"]),
        ("mpirun -np 4 python x.py\nsrun hostname", 2, ["train.sh:1: mpirun gets nothing from it"]),
        ("for n in $(cat h); do ssh $n hostname; done\nsrun x", 2, ["train.sh:1: ssh gets nothing from it"]),
        ("\nsrun --pty bash", 1, ["train.sh:2: --pty of srun or jsrun is not carried out"]),
        ("srun --multi-prog a.conf", 1, ["train.sh:1: --multi-prog of srun or jsrun is not carried out"]),
        (
            "srun --container-image=a.sqsh python x.py", 1,
            ["train.sh:1: --container-image of srun or jsrun is not carried out"],
        ),
        (
            "srun -n1 a : -n2 b", 1,
            ["train.sh:1: a part of a heterogeneous job of srun or jsrun is not carried out"],
        ),
        ("blaunch -z h python x.py", 1, ["train.sh:1: blaunch gets nothing from it"]),
        ("time aprun -n4 a.out", 1, ["train.sh:1: aprun gets nothing from it"]),
        ("echo no salloc here", 1, []),
        ("DIR=$(dirname $(scontrol show job $SLURM_JOB_ID | awk -F= '/Command=/{print $2}'))", 1,
         ["train.sh:1: scontrol show job of its own job gets no answer"]),
        ("left=`squeue -h -j ${SLURM_JOBID} -o %L`", 1, ["train.sh:1: squeue of its own job gets no answer"]),
        ("scontrol show job $SLURM_JOB_ID\nn=$(squeue -u me | wc -l); sacct -j $SLURM_JOB_ID", 1, []),
        ("/usr/bin/srun -n4 python x.py", 1, ["train.sh:1: /usr/bin/srun gets nothing from it"]),
        ("\n$SLURM_HOME/bin/srun python x.py", 2, ["train.sh:2: $SLURM_HOME/bin/srun gets nothing from it"]),
        ("ccc_mprun ./a.out", 1, ["train.sh:1: ccc_mprun gets nothing from it"]),
        ("ARGS=(\n  --container-image=a.sqsh\n)\nsrun \"${ARGS[@]}\" python x.py", 1,
         ["train.sh:4: --container-image of srun or jsrun is not carried out"]),
        ("HOW=--multi-prog\nsrun -n2 $HOW a.conf", 1, ["train.sh:2: --multi-prog of srun or jsrun is not carried out"]),
        ("srun --environment=e.toml python x.py", 1,
         ["train.sh:1: --environment of srun or jsrun is not carried out"]),
        ("srun -n 4 -l --mpi=none python x.py --environment CartPole-v1 --pty", 1, []),
        ("setenv CUDA_VISIBLE_DEVICES 0,1\npython x.py", 1,
         ["train.sh:1: setenv CUDA_VISIBLE_DEVICES 0,1 takes GPUs by their numbers: those may be another job's"]),
        ("python - <<EOF\nimport os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\nEOF", 1,
         [f"train.sh:3: os.environ['CUDA_VISIBLE_DEVICES'] = '0' {BY_NUMBERS}"]),
        ("accelerate launch --gpu_ids 0,1 x.py", 1,
         ["train.sh:1: accelerate launch --gpu_ids 0,1 takes GPUs by their numbers: those may be another job's"]),
        ("accelerate launch --gpu_ids all x.py", 1, []),
        ("deepspeed --num_gpus=2 x.py", 1, ["train.sh:1: deepspeed takes GPUs by their numbers"]),
        ("time deepspeed x.py --deepspeed ds.json", 1, ["train.sh:1: deepspeed fails"]),
        ("module load deepspeed\nsrun python x.py --strategy deepspeed", 1, []),
        ("sbcast data.tar /tmp/data.tar", 1, ["train.sh:1: sbcast is not carried out"]),
        ("./flux-train/run.sh", 1, []),
        ("ssh-keyscan h\nsrun x", 2, []),
        ("export CUDA_VISIBLE_DEVICES=0,1\nsrun python x.py", 1, []),
        ("export CUDA_VISIBLE_DEVICES=0,1\npython x.py", 1,
         ["train.sh:1: CUDA_VISIBLE_DEVICES=0,1 takes GPUs by their numbers: those may be another job's"]),
        ("for i in 0 1; do CUDA_VISIBLE_DEVICES=$i python x.py & done", 1,
         ["train.sh:1: CUDA_VISIBLE_DEVICES=$i takes GPUs by their numbers: those may be another job's"]),
        ("srun bash -c 'CUDA_VISIBLE_DEVICES=$SLURM_LOCALID python x.py'", 1,
         ["train.sh:1: CUDA_VISIBLE_DEVICES=$SLURM_LOCALID takes GPUs by their numbers: those may be another job's"]),
        ("srun sh -c 'CUDA_VISIBLE_DEVICES=0 python x.py'", 1,
         ["train.sh:1: CUDA_VISIBLE_DEVICES=0 takes GPUs by their numbers: those may be another job's"]),
        ("CUDA_VISIBLE_DEVICES=${GPU_INDEX} python x.py", 1,
         ["train.sh:1: CUDA_VISIBLE_DEVICES=${GPU_INDEX} takes GPUs by their numbers: those may be another job's"]),
        ('export CUDA_VISIBLE_DEVICES="$a,$b"; python x.py', 1,
         ['train.sh:1: CUDA_VISIBLE_DEVICES="$a,$b" takes GPUs by their numbers: those may be another job\'s']),
        ("accelerate launch --num_machines 2 --machine_rank 0 x.py", 2,
         [f"train.sh:1: --machine_rank 0 {ONE_RANK}"]),
        ("accelerate launch --num_machines 2 --machine_rank $HPCDL_NODE_RANK x.py", 2, []),
        ("srun accelerate launch --num_machines 2 --machine_rank 0 x.py", 2, []),
        ("accelerate launch --num_machines 1 --machine_rank 0 x.py", 1, []),
        ("torchrun --nnodes 2 --node-rank=0 x.py", 2,
         [f"train.sh:1: --node-rank=0 {ONE_RANK}"]),
        ("python x.py # CUDA_VISIBLE_DEVICES=0\nexport CUDA_VISIBLE_DEVICES=$HPCDL_GPUS", 1, []),
        ("env NV=$CUDA_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES= python x.py", 1, []),
    ],
)  # fmt: skip
def test_what_is_in_doubt(script: str, nodes: int, said: list[str]) -> None:
    found = [str(each).partition(": hpcdl")[0].partition(": with")[0].partition(": it")[0]
             for each in doubts(script, "train.sh", nodes, 2, "train.sh:2: -N 2")]  # fmt: skip
    assert found == said


@pytest.mark.parametrize(
    "script, nodes, tasks, gpus",
    [
        ("srun --gres=gpu:4 python x.py", 1, 1, 4),
        ("srun --gpus-per-node a100:2 python x.py", 2, 2, 2),
        ("srun -n 8 --gpus-per-task=1 python x.py", 2, 1, 4),
        ("srun --gpus-per-task=2 python x.py", 2, 4, 4),
        ("srun -N2 --ntasks-per-node=8 --gpus-per-task=1 python x.py", 2, 2, 8),
        ("srun --tasks-per-node 4 -c7 --gpus-per-task=1 python x.py", 2, 2, 4),
        ("srun -G 8 python x.py\nsrun --gres=gpu:1 y", 2, 2, 4),
        ("srun python x.py --gpus-per-nodes", 1, 1, None),
        ("jsrun -n 4 -a 1 -g 1 -c 7 python x.py", 2, 2, 2),
        ("jsrun -n2 -g6 -r1 -bpacked:7 python x.py", 2, 2, 6),
        ("jsrun --nrs 12 --gpu_per_rs 1 --rs_per_host 6 python x.py", 2, 2, 6),
        ("jsrun -n ALL_HOSTS -g 6 python x.py", 3, 3, 6),
        ("jsrun -n $NODES -g 6 python x.py", 3, 3, None),
        ("jsrun -n 4 -a 1 -c 7 python x.py", 2, 2, None),
        ("python x.py", 1, 1, None),
    ],
)
def test_gpus_that_only_its_steps_ask_for(script: str, nodes: int, tasks: int, gpus: int | None) -> None:
    assert gpus_on_each(script, nodes, tasks) == gpus


def test_what_stays_on_its_node() -> None:
    assert stays("python x.py\necho mpirun")
    assert not stays("mpirun -np 4 python x.py")
    assert not stays("jsrun -n4 x")


OWN = "CUDA_VISIBLE_DEVICES=$HPCDL_GPUS"


@pytest.mark.parametrize(
    "line, gpus, changed",
    [
        ("CUDA_VISIBLE_DEVICES=0 python x.py", 1, f"{OWN} python x.py"),
        ("export CUDA_VISIBLE_DEVICES=${1:-0}", 1, f"export {OWN}"),
        ("export CUDA_VISIBLE_DEVICES='0'", 1, f"export {OWN}"),
        ('export CUDA_VISIBLE_DEVICES="$GPU"; python x.py', 1, f"export {OWN}; python x.py"),
        ("bash -c 'CUDA_VISIBLE_DEVICES=0 python x.py'", 1, f"bash -c '{OWN} python x.py'"),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun x.py", 2, f"{OWN} torchrun x.py"),
        ("CUDA_VISIBLE_DEVICES=0 python x.py", 2, None),
        ("CUDA_VISIBLE_DEVICES=$i python x.py", 2, None),
        ("CUDA_VISIBLE_DEVICES=1 python x.py", 1, None),
        ("CUDA_VISIBLE_DEVICES=$a,$b python x.py", 1, None),
        ('CUDA_VISIBLE_DEVICES="$a,$b" python x.py', 1, None),
        ("export CUDA_VISIBLE_DEVICES=", 1, None),
        ("setenv CUDA_VISIBLE_DEVICES 0", 1, "setenv CUDA_VISIBLE_DEVICES $HPCDL_GPUS"),
        ("# CUDA_VISIBLE_DEVICES=0", 1, None),
        ("MY_CUDA_VISIBLE_DEVICES=0", 1, None),
        ("export CUDA_VISIBLE_DEVICES=0\nsrun python x.py", 1, None),  # srun takes it for the first of the job's
    ],
)
def test_numbers_that_can_only_be_the_jobs_own_gpus(line: str, gpus: int, changed: str | None) -> None:
    text, said = with_own_gpus(f"#!/bin/sh\n{line}\n", "t.sh", gpus)
    assert text == f"#!/bin/sh\n{changed or line}\n"
    assert [(each.where, each.doubt) for each in said] == ([("t.sh:2", False)] if changed else [])
    assert changed is None or not list(doubts(text, "t.sh", 1, gpus, ""))
