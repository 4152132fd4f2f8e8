"""Batch scripts as agents start them, on one node and on two: real shells, srun and jsrun of the commands' folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.start_request import batch_script
from hpcdl.core.model.job import BatchTasks
from tests.support.batch_machine import TIMEOUT_S, Machine
from tests.support.waiting import until


@pytest.fixture
def folder() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="hpcdl-batch-"))  # short, for the sockets' paths
    yield found
    shutil.rmtree(found)


@pytest.fixture
def one(folder: Path) -> Iterator[Machine]:
    machine = Machine(folder, ["n1"])
    yield machine
    machine.close()


@pytest.fixture
def two(folder: Path) -> Iterator[Machine]:
    machine = Machine(folder, ["n1", "n2"])
    yield machine
    machine.close()


SLURM = BatchTasks("slurm", tasks=2, tasks_per_node=2, variables=(("SLURM_CPUS_PER_TASK", "4"),))


def test_variables_output_and_exit_code(one: Machine) -> None:
    batch = BatchTasks(
        "slurm", tasks=2, output="%x-%j.%a.out", error="%N.err", variables=(("SLURM_MEM_PER_NODE", "9"),)
    )
    script = """#!/bin/bash
env | grep -E '^(SLURM_|RANK|WORLD|PET_)' | sort
echo oops >&2
scontrol show hostnames $SLURM_JOB_NODELIST; scontrol show hostnames 'a[1-2],b'
exit 5
"""
    code, out, err = one.run(script, batch, HPCDL_JOB_NAME="net[3]", HPCDL_ARRAY_JOB="6", HPCDL_ARRAY_INDEX="3")
    assert (code, err) == (5, "oops\n")
    found = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    expected = {
        "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_NODELIST": "n1",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": "2", "SLURM_NPROCS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
        "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0,1", "SLURM_TASKS_PER_NODE": "2", "SLURM_JOB_NAME": "net",
        "SLURM_ARRAY_JOB_ID": "6", "SLURM_MEM_PER_NODE": "9", "SLURM_JOB_PARTITION": "hpcdl", "SLURMD_NODENAME": None,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert not {"RANK", "WORLD_SIZE", "PET_NNODES"} & found.keys()
    assert out.splitlines()[-4:] == ["127.0.0.1", "a1", "a2", "b"]  # nobody resolves n1 here
    assert (one.work / "net-7.3.out").read_text() == out
    assert (one.work / "n1.err").read_text() == "oops\n"


def test_output_files_are_emptied_at_the_first_start_only(one: Machine) -> None:
    kept = one.work / "out"
    for more, batch, text in (
        ({}, BatchTasks("slurm", output="out"), "x\n"),
        ({}, BatchTasks("slurm", output="out"), "x\n"),
        ({"HPCDL_INCARNATION": "2"}, BatchTasks("slurm", output="out"), "x\nx\n"),
        ({}, BatchTasks("slurm", output="out", append=True), "x\nx\nx\n"),
    ):
        assert one.run("#!/bin/sh\necho x", batch, **more)[0] == 0
        assert kept.read_text() == text
    code, out, err = one.run("#!/bin/sh\necho x", BatchTasks("slurm", output="nowhere/out"))
    assert (code, out) == (0, "x\n")
    assert err == "hpcdl: cannot write nowhere/out: No such file or directory: the output is in hpcdl logs 7 only\n"


def test_srun_on_one_node(one: Machine) -> None:
    script = """#!/bin/bash -l
srun -l sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS $SLURM_LOCALID $HPCDL_RANK $CUDA_VISIBLE_DEVICES'
srun --gpus-per-task=1 --output=t%t.txt sh -c 'echo $SLURM_STEP_ID $CUDA_VISIBLE_DEVICES $SLURM_CPUS_PER_TASK'
srun sh -c 'exit $((SLURM_PROCID * 3))'
echo code $?
A=1 srun -n1 --export=NONE,B=2 sh -c 'echo $A,$B,$SLURM_JOB_ID,${HPCDL_SOCKET:+s}'
srun -n1 missing-program
echo code $?
srun --pty bash || echo refused $?
echo in | srun -n1 cat
"""
    code, out, err = one.run(script, SLURM)
    assert code == 0
    assert sorted(out.splitlines()[:2]) == ["0: 0/2 0 0 n1-a,n1-b", "1: 1/2 1 1 n1-a,n1-b"]
    assert out.splitlines()[2:] == ["code 3", ",2,7,s", "code 127", "refused 1", "in"]
    assert [(one.work / f"t{rank}.txt").read_text() for rank in (0, 1)] == ["1 n1-a 4\n", "1 n1-b 4\n"]
    assert "srun: error: n1: task 1: exited with exit code 3\n" in err
    assert "srun: error: n1: task 0: cannot start missing-program: No such file or directory\n" in err
    assert "hpcdl: srun: --pty: hpcdl has no terminal inside a job\n" in err


def test_functions_of_the_shell_reach_a_script_and_its_tasks(one: Machine) -> None:
    script = "#!/bin/bash\nmodule load cuda\nsrun -n1 bash -c 'module load more'\n"
    code, out, err = one.run(script, SLURM, **{"BASH_FUNC_module%%": "() {  echo module $*\n}"})
    assert (code, out, err) == (0, "module load cuda\nmodule load more\n", "")


def test_numbers_of_gpus_are_places_among_the_jobs_own(one: Machine) -> None:
    """As where a batch system hides all others; taken as CUDA does, they would be another job's GPUs."""
    script = """#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1
srun -n1 sh -c 'echo $CUDA_VISIBLE_DEVICES'
srun -n1 --gres=gpu:1 sh -c 'echo $CUDA_VISIBLE_DEVICES'
CUDA_VISIBLE_DEVICES=1 srun -n1 sh -c 'echo $CUDA_VISIBLE_DEVICES'
CUDA_VISIBLE_DEVICES=7 srun -n1 sh -c 'echo $CUDA_VISIBLE_DEVICES'
"""
    code, out, err = one.run(script, SLURM, HPCDL_GPUS="n1-a,n1-b")
    assert (code, out.splitlines(), err) == (0, ["n1-a,n1-b", "n1-a", "n1-b", "7"], "")


def test_steps_at_a_time_have_gpus_of_their_own(one: Machine) -> None:
    script = """#!/bin/bash
for i in 1 2 3; do srun -n1 --gres=gpu:1 --exact sh -c 'mkdir $CUDA_VISIBLE_DEVICES && sleep 0.3 &&
rmdir $CUDA_VISIBLE_DEVICES && echo $CUDA_VISIBLE_DEVICES' & done
wait
srun -n1 --gres=gpu:3 true || echo $?
"""
    code, out, err = one.run(script, SLURM)
    assert code == 0
    assert out.splitlines()[-1] == "1"
    assert len(out.splitlines()) == 4
    assert set(out.splitlines()[:3]) <= {"n1-a", "n1-b"}  # none had another's: mkdir was the first each time
    assert "it asks for 3 GPUs on a node, and the job has 2" in err


def test_srun_on_two_nodes(two: Machine) -> None:
    script = """#!/bin/bash
echo once $SLURM_NODEID $SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE
export MINE=yes
srun sh -c 'echo $SLURM_PROCID.$SLURM_LOCALID.$SLURM_NODEID.$SLURM_NTASKS $HPCDL_NODE $CUDA_VISIBLE_DEVICES $MINE'
srun -N1 -n1 -w n2 sh -c 'exit 4'
echo code $?
"""
    batch = BatchTasks("slurm", tasks=4, tasks_per_node=2, output="all-%j")
    code, out, err = two.run(script, batch)
    assert code == 0
    lines = [line for line in (two.work / "all-7").read_text().splitlines() if "error" not in line]
    assert sorted(lines) == [
        "0.0.0.4 n1 n1-a,n1-b yes",
        "1.1.0.4 n1 n1-a,n1-b yes",
        "2.0.1.4 n2 n2-a,n2-b yes",
        "3.1.1.4 n2 n2-a,n2-b yes",
        "code 4",
        "once 0 n[1-2] 2(x2)",
    ]
    assert "srun: error: n2: task 0: exited with exit code 4\n" in err
    assert sorted(out.splitlines()) == sorted(lines)
    assert not (two.folder / ".steps.1").exists()


def test_jsrun_on_two_nodes(two: Machine) -> None:
    script = """#!/bin/bash
echo $LSB_JOBID $LSB_JOBINDEX $LSB_MCPU_HOSTS $(sort -u $LSB_DJOB_HOSTFILE | grep -v batch | wc -l)
jsrun -n 4 -r 2 -a 1 -g 1 -c 1 -E X=3 sh -c 'echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK '\
'$JSM_NAMESPACE_SIZE $CUDA_VISIBLE_DEVICES $X'
bstop $LSB_JOBID || echo no
"""
    code, out, err = two.run(script, BatchTasks("lsf", launch_host=True))
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "7 0 batch1 1 127.0.0.1 1 n2 1 2"
    assert sorted([*lines[1:3], *lines[4:]]) == ["0 0 4 n1-a 3", "1 1 4 n1-b 3", "2 0 4 n2-a 3", "3 1 4 n2-b 3"]
    assert lines[3] == "no"
    assert err == "hpcdl: bstop: job 7 is hpcdl's, which the batch system does not know: hpcdl suspend 7\n"


def test_signals_go_on_to_the_tasks_of_all_nodes(two: Machine) -> None:
    script = """#!/bin/bash
trap 'kill -USR1 $step' USR1
srun -n2 bash -c 'trap "echo asked; exit 3" USR1; touch up.$SLURM_PROCID; while :; do sleep 0.05; done' &
step=$!
echo $$ > pid
wait $step
code=$?
if [ $code -gt 128 ]; then wait $step; code=$?; fi
exit $code
"""
    running = two.start(script, BatchTasks("slurm"))
    until(lambda: all((two.work / name).exists() for name in ("up.0", "up.1", "pid")), "the tasks")
    # What a batch system sends to all processes of its job ends none of hpcdl's own.
    for each in running:
        each.send_signal(signal.SIGUSR1)
        each.send_signal(signal.SIGTSTP)
    os.kill(int((two.work / "pid").read_text()), signal.SIGUSR1)
    done = [each.communicate(timeout=TIMEOUT_S) for each in running]
    assert [each.returncode for each in running] == [3, 0]
    assert [out for out, _ in done] == ["asked\n", "asked\n"]


def test_a_script_that_a_job_submitted_has_one_more_bash_env(one: Machine) -> None:
    (one.work / "mine").write_text("echo mine\n")
    batch = BatchTasks("slurm")
    outer = one.run("#!/bin/bash\necho $BASH_ENV", batch, BASH_ENV=str(one.work / "mine"))
    assert outer[1].splitlines()[0] == "mine"
    # Those of the job that submits are the submitted one's, but for HPCDL_*.
    assert one.run("#!/bin/bash\necho ran", batch, BASH_ENV=outer[1].split()[-1]) == (0, "ran\n", "")


def test_tasks_on_other_nodes_end_with_the_script(two: Machine) -> None:
    script = """#!/bin/bash
srun -N1 -n1 -w n2 bash -c 'trap "echo ended; exit 0" TERM; touch up; while :; do sleep 0.05; done' &
until [ -e up ]; do sleep 0.05; done
kill -9 $!
exit 3
"""
    code, out, _ = two.run(script, BatchTasks("slurm"))
    assert (code, out) == (3, "ended\n")


def test_the_folder_of_steps_is_closed_to_others(two: Machine) -> None:
    """It lies beside checkpoints, where others may read and write, and has the script's environment in it."""
    script = "#!/bin/bash\nsrun -n2 touch a\nstat -c '%a %F' $HPCDL_STEP_FOLDER $HPCDL_STEP_FOLDER/*.step"
    code, out, _ = two.run(script, BatchTasks("slurm"))
    assert (code, out) == (0, "700 directory\n600 regular file\n")


def test_a_folder_of_steps_that_is_open_to_others_is_not_used(two: Machine) -> None:
    steps = two.folder / ".steps.1"
    steps.mkdir()
    steps.chmod(0o777)
    body = {"argv": ["touch", "hit"], "tasks": [{"rank": 0, "node": 1}]}
    (steps / "0.1.step").write_text(json.dumps(body))
    second = subprocess.run(
        batch_script(BatchTasks("slurm"), str(steps), ("true",)), env=two.environment("n2"), cwd=two.work,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert (second.returncode, (two.work / "hit").exists()) == (1, False)
    assert second.stderr == (f"hpcdl: script: {steps} is open to others (mode 0777): run chmod 700 {steps}\n")


def test_one_that_fails_ends_the_others_where_that_is_said(two: Machine) -> None:
    script = "#!/bin/bash\nsrun -K -n2 sh -c '[ $SLURM_PROCID = 1 ] && exit 9; exec sleep 600'\necho code $?"
    code, out, err = two.run(script, BatchTasks("slurm"))
    assert (code, out) == (0, "code 143\n")
    assert "task 1: exited with exit code 9" in err


def test_without_a_script_the_other_nodes_end_at_sigterm(two: Machine) -> None:
    running = two.start("#!/bin/bash\nsrun -N1 -n1 -w n2 true\ntouch up\nexec sleep 600", BatchTasks("slurm"))
    until((two.work / "up").exists, "the first task")
    running[1].send_signal(signal.SIGTERM)
    assert running[1].wait(TIMEOUT_S) == 0
    running[0].kill()
    for each in running:
        each.communicate(timeout=TIMEOUT_S)
    assert running[0].returncode == -signal.SIGKILL


def test_the_script_ends_by_a_signal(one: Machine) -> None:
    running = one.start("#!/bin/sh\nkill -9 $$", BatchTasks("slurm"))
    running[0].communicate(timeout=TIMEOUT_S)
    assert running[0].returncode == -signal.SIGKILL


def test_a_script_that_requeues_itself_runs_again(one: Machine) -> None:
    script = """#!/bin/bash
echo run ${SLURM_RESTART_COUNT:-0}
[ ${SLURM_RESTART_COUNT:-0} = 2 ] || { scontrol requeue $SLURM_JOB_ID; sleep 600; }
"""
    code, out, _ = one.run(script, BatchTasks("slurm"))
    assert (code, out) == (0, "run 0\nrun 1\nrun 2\n")
    (one.folder / "n1" / "record.jsonl").write_text('{"kind":"suspending"}\n')  # then the daemon starts it again
    code, out, _ = one.run(script, BatchTasks("slurm"))
    assert (code, out) == (0, "run 0\n")


def test_a_script_may_end_at_once_after_its_requeue(one: Machine) -> None:
    script = """#!/bin/bash
echo run ${SLURM_RESTART_COUNT:-0}
[ ${SLURM_RESTART_COUNT:-0} = 2 ] || exec scontrol requeue $SLURM_JOB_ID
"""
    assert one.run(script, BatchTasks("slurm")) == (0, "run 0\nrun 1\nrun 2\n", "")


def test_commands_that_name_the_own_job_reach_no_batch_system(one: Machine) -> None:
    real = one.folder / "bin"
    real.mkdir()
    for name in ("squeue", "scancel", "scontrol", "salloc"):
        (real / name).write_text('#!/bin/sh\necho real $(basename $0) "$@"\n')
        (real / name).chmod(0o755)
    script = """#!/bin/bash
squeue -j $SLURM_JOB_ID -h -o %L; scancel -s KILL ${SLURM_JOB_ID}; scontrol show job $SLURM_JOB_ID; salloc -N2
squeue -u me; scancel 77; scontrol show hostlist b2,b1
env -u SLURM_JOB_PARTITION squeue -j 7
"""
    path = f"{real}:{os.environ['PATH']}"
    code, out, err = one.run(script, BatchTasks("slurm"), PATH=path)
    assert code == 0
    assert out.splitlines() == ["real squeue -u me", "real scancel 77", "b[1-2]", "real squeue -j 7"]
    assert [line.partition(": ")[2].partition(":")[0] for line in err.splitlines()] == [
        "squeue", "scancel", "scontrol", "salloc"
    ]  # fmt: skip


def test_a_folder_for_the_time_of_the_script(one: Machine) -> None:
    code, out, _ = one.run(
        "#!/bin/sh\ntouch $SLURM_TMPDIR/x\necho $SLURM_TMPDIR", BatchTasks("slurm", scratch="SLURM_TMPDIR")
    )
    assert code == 0
    assert not Path(out.strip()).exists()


@pytest.mark.parametrize("fields", [{"system": "Slurm!"}, {"tasks": 0}, {"tasks_per_node": -1}, {"output": "a\0b"}])
def test_what_makes_no_sense(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="batch script"):
        BatchTasks(**{"system": "slurm", **fields})
    assert json.dumps(fields)


RANK = """import mmap, os, time
file = os.open("libmpi.so.40", os.O_RDONLY)
seen = mmap.mmap(file, 0, prot=mmap.PROT_READ)
print("rank 0 of 1", flush=True)
time.sleep(float(os.environ.get("LONG", "600")))
"""
"""What has the library of MPI in its memory."""


def with_mpi(machine: Machine) -> Machine:
    (machine.work / "libmpi.so.40").write_text("a library")
    (machine.work / "rank.py").write_text(RANK)
    (machine.work / "rank.sh").write_text(f"{sys.executable} rank.py; true\n")
    return machine


@pytest.mark.parametrize(
    "step",
    ["srun {}", "srun bash rank.sh", "jsrun -n 4 -a 1 -c 1 {}", "srun --mpi=pmix {}", "srun -n2 ./hello"],
)
def test_ranks_of_mpi_without_a_pmi_end_the_job(one: Machine, step: str) -> None:
    machine = with_mpi(one)
    (machine.work / "hello").write_bytes(b"\x7fELF libmpi.so.12\0")
    (machine.work / "hello").chmod(0o755)
    name = step.split()[0]
    batch = BatchTasks("lsf" if name == "jsrun" else "slurm", tasks=4)
    step = step.format(f"{sys.executable} rank.py")
    code, out, err = machine.run(f"#!/bin/bash\n{step}\nsleep 600\necho after\n", batch)
    assert code == 1
    assert "after" not in out
    assert err.count("\n") == 1
    assert err.startswith(f"hpcdl: {name}: its {2 if '-n2' in step else 4} tasks are ranks of MPI (")
    assert not any(machine.folder.glob("n1/requeue"))


@pytest.mark.parametrize(
    "step, ranks",
    [
        ("srun -n1 {}", 1),
        ("srun --mpi=none {}", 4),
        ("SLURM_MPI_TYPE=none srun {}", 4),
        ("jsrun -n2 -a1 -c1 --smpiargs=off {}", 2),
        ("{}", 1),
        ("srun -n2 env PMI_FD=9 {}", 2),  # what mpirun starts
        ("srun -n2 env TORCHELASTIC_RUN_ID=a {}", 2),
    ],
)
def test_ranks_that_need_none_run(one: Machine, step: str, ranks: int) -> None:
    code, out, _ = with_mpi(one).run(
        f"#!/bin/bash\n{step.format(f'{sys.executable} rank.py')}\n",
        BatchTasks("lsf" if "jsrun" in step else "slurm", tasks=4), LONG="1",
    )  # fmt: skip
    assert (code, out) == (0, "rank 0 of 1\n" * ranks)


def test_a_rank_of_mpi_on_another_node_ends_the_job(two: Machine) -> None:
    batch = BatchTasks("slurm", tasks=2, tasks_per_node=1, first_only=True)
    step = f'[ $SLURM_PROCID = 0 ] || exec "{sys.executable}" rank.py; sleep 600'
    code, _, err = with_mpi(two).run(f"#!/bin/bash\nsrun bash -c '{step}'\necho after\n", batch)
    assert code == 1
    assert err.count("its 2 tasks are ranks of MPI") == 1
