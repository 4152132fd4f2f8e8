"""srun's and jsrun's command lines, and which task runs where with which GPUs."""

import shlex

import pytest

from hpcdl.agent.steps import jsrun, srun
from hpcdl.agent.steps.layout import BadStep, StepOptions, Task, filled, gpus_of, per_node_text, spread
from hpcdl.agent.steps.variables import SrunVariables, jsrun_variables
from hpcdl.core.model.units import node_list, slurm_seconds

NODES = ["n1", "n2"]
FOUR = {"HPCDL_GPU_COUNT": "4", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}


def step(line: str, **around: str) -> StepOptions:
    asked, command = srun.parse(shlex.split(line))
    return srun.options_of(asked, command, FOUR | around, NODES)


def placed(options: StepOptions, gpus: int = 4) -> list[tuple[int, int, tuple[int, ...] | None]]:
    """Node, place on it and GPUs of each task, where the step has the first GPUs of each node."""
    of = list(range(gpus if options.gpus_node is None else options.gpus_node))
    return [(each.node, each.local, gpus_of(options, each, of)) for each in spread(options)]


@pytest.mark.parametrize(
    "line, around, where",
    [
        ("python x.py", {}, [(0, 0), (1, 0)]),
        ("python x.py", {"SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("-n 3 x", {}, [(0, 0), (0, 1), (1, 0)]),
        ("-n1 x", {"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"}, [(0, 0)]),
        ("-N1 x", {"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"}, [(0, 0), (0, 1), (0, 2), (0, 3)]),
        ("--nodes=1 --ntasks=1 -w n2 x", {"SLURM_NTASKS": "8"}, [(1, 0)]),
        ("--ntasks-per-node=2 x", {"SLURM_NTASKS": "2"}, [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("--tasks-per-node 1 x", {}, [(0, 0), (1, 0)]),
        ("-n 4 -m cyclic x", {}, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ("-x n1 x", {}, [(1, 0)]),
        ("--exclude=n2 -n2 x", {}, [(0, 0), (0, 1)]),
        ("-r 1 -N1 x", {}, [(1, 0)]),
        ("-N1 --ntasks-per-gpu=1 --gpus=2 x", {}, [(0, 0), (0, 1)]),
        ("-N1 --ntasks-per-gpu=1 x", {"SLURM_NTASKS": "1"}, [(0, 0), (0, 1), (0, 2), (0, 3)]),
    ],
)
def test_where_sruns_tasks_run(line: str, around: dict[str, str], where: list[tuple[int, int]]) -> None:
    assert [each[:2] for each in placed(step(line, **around))] == where


@pytest.mark.parametrize(
    "line, around, gpus",
    [
        ("-n4 -N1 x", {}, [None] * 4),
        ("-N1 -n4 --gpus-per-task=1 x", {}, [(0,), (1,), (2,), (3,)]),
        ("-N1 -n2 x", {"SLURM_GPUS_PER_TASK": "2"}, [(0, 1), (2, 3)]),
        ("-N1 -n2 --gres=gpu:2 x", {}, [(0, 1), (0, 1)]),
        ("-N1 -n2 --tres-per-task=cpu=2,gres/gpu:a100:2 x", {}, [(0, 1), (2, 3)]),
        ("-N1 -n1 --gres=gpu:a100:1 x", {}, [(0,)]),
        ("-N1 -n2 -G 2 --gpu-bind=single:1 x", {}, [(0,), (1,)]),
        ("-N1 -n4 --gpu-bind=map_gpu:3,2,1,0 x", {}, [(3,), (2,), (1,), (0,)]),
        ("-N1 -n2 --gpu-bind=verbose,mask_gpu:0x3,0xc x", {}, [(0, 1), (2, 3)]),
        ("-N1 -n4 --gpus-per-task=1 --gpu-bind=none x", {}, [(0, 1, 2, 3)] * 4),
        ("-N1 -n4 --gpu-bind=closest x", {}, [None] * 4),
        ("-N1 -n4 x", {"SLURM_GPU_BIND": "per_task:1"}, [(0,), (1,), (2,), (3,)]),
        ("-N1 -n4 --ntasks-per-gpu=1 x", {}, [(0,), (1,), (2,), (3,)]),
        ("-N1 -n4 x", {"SLURM_NTASKS_PER_GPU": "2"}, [(0,), (0,), (1,), (1,)]),
        ("-N1 -n2 --gpus-per-task=2 x", {"SLURM_NTASKS_PER_GPU": "1"}, [(0, 1), (2, 3)]),
        ("-N1 -n4 --ntasks-per-gpu=1 --gpu-bind=none x", {}, [None] * 4),
    ],
)
def test_which_gpus_sruns_tasks_see(line: str, around: dict[str, str], gpus: list[tuple[int, ...] | None]) -> None:
    assert [each[2] for each in placed(step(line, **around))] == gpus


def test_sruns_other_options() -> None:
    found = step(
        "-l -u --mpi=pmix --cpu-bind=cores --cpu_bind=none --kill-on-bad-exit=1 -o a_%t.out -e b -D /tmp -t 1:30 "
        "--export=ALL,A=1,B --unbuffered --mem-per-cpu 4G -c8 -J name --overlap python -u x.py -n 5"
    )
    assert (found.label, found.kill_on_bad_exit, found.overlap) == (True, True, True)
    assert (found.output, found.error, found.cwd, found.time_s) == ("a_%t.out", "b", "/tmp", 90.0)
    assert (found.export, found.only) == ({"A": "1"}, None)
    assert found.command == ("python", "-u", "x.py", "-n", "5")
    assert [step(line).kill_on_bad_exit for line in ("-K x", "-K0 x", "x")] == [True, False, False]
    assert step("x", SLURM_KILL_BAD_EXIT="1").kill_on_bad_exit
    assert step("--export=NONE x").only == ()
    assert (step("--export=A,B=2 x").only, step("--export=A,B=2 x").export) == (("A",), {"B": "2"})
    assert step("--wait 60 -Q -- -x").command == ("-x",)


@pytest.mark.parametrize(
    "line, why",
    [
        ("--pty bash", "no terminal"),
        ("--multi-prog a.conf", "several programs"),
        ("--het-group=0 x", "heterogeneous"),
        ("-n1 x : -n2 y", "heterogeneous"),
        ("--container-image=x.sqsh y", "cannot do that"),
        ("-Z x", "cannot do that"),
        ("-N3 x", "3 nodes, and the job has 2"),
        ("-w n7 x", "n7 is none of the job's nodes (n1, n2)"),
        ("-n", "its value is missing"),
        ("-n many x", "'many' is not a number"),
        ("-n 0 x", "--ntasks: must be at least 1"),
        ("-N 0 x", "--nodes: must be at least 1"),
        ("-t soon x", "'soon' is not a time"),
        ("-N1 -n8 --gres=gpu:4 --gpus-per-task=1 x", "lacks GPUs"),
        ("-N1 --gpu-bind=map_gpu:7 x", "does not fit the 4 GPUs"),
    ],
)
def test_what_srun_refuses(line: str, why: str) -> None:
    with pytest.raises(BadStep) as error:
        placed(step(line))
    assert why in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line, tasks",
    [
        ("-n 2 -a 1 -g 1 x", [(0, 0, (0,)), (0, 1, (1,))]),
        ("-n4 -r2 -a1 -g2 -c7 x", [(0, 0, (0, 1)), (0, 1, (2, 3)), (1, 0, (0, 1)), (1, 1, (2, 3))]),
        ("-n 2 -r 1 -a 2 -g 4 x", [(node, place, (0, 1, 2, 3)) for node in (0, 1) for place in (0, 1)]),
        ("--nrs=2 --rs_per_host=1 --gpu_per_rs=ALL_GPUS x", [(0, 0, (0, 1, 2, 3)), (1, 0, (0, 1, 2, 3))]),
        ("-n ALL_HOSTS -g 1 --smpiargs='-gpu' x", [(0, 0, (0,)), (1, 0, (0,))]),
        ("-p 2 -g 4 x", [(0, 0, (0, 1, 2, 3)), (1, 0, (0, 1, 2, 3))]),
        ("-n 8 -g 1 -EA=1 -bpacked:7 -d packed x", [(n, i, (i,)) for n in (0, 1) for i in range(4)]),
    ],
)  # fmt: skip
def test_jsruns_resource_sets(line: str, tasks: list[tuple[int, int, tuple[int, ...]]]) -> None:
    asked, setting, command = jsrun.parse(shlex.split(line))
    options = jsrun.options_of(asked, setting, command, FOUR, NODES)
    assert placed(options) == tasks
    assert options.command == ("x",)


def test_what_jsrun_refuses() -> None:
    for line, why in (("-n 12 -g 1 x", "do not fit 2 nodes"), ("-U sets.erf x", "resource sets in a file"),
                      ("--what x", "cannot do that"), ("-n", "its value is missing"),
                      ("-n 0 x", "-n: '0' is not a number from 1"),
                      ("-p 2 -a 0 x", "-a: '0' is not a number from 1")):  # fmt: skip
        with pytest.raises(BadStep) as error:
            asked, setting, command = jsrun.parse(shlex.split(line))
            jsrun.options_of(asked, setting, command, FOUR, NODES)
        assert why in str(error.value)


def test_variables_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_TRES_PER_TASK", "cpu=2,gres/gpu=1")
    tasks = spread(StepOptions((0, 1), 3))
    found = SrunVariables(5, NODES, 8)(tasks[2], tasks)
    kept = {name: found[f"SLURM_{name}"] for name in (
        "PROCID", "LOCALID", "NODEID", "NTASKS", "NNODES", "TASKS_PER_NODE", "STEP_ID", "STEPID", "STEP_NODELIST",
        "STEP_NUM_TASKS", "STEP_NUM_NODES", "STEP_TASKS_PER_NODE", "CPUS_PER_TASK", "GTIDS",
    )}  # fmt: skip
    assert list(kept.values()) == ["2", "0", "1", "3", "2", "2,1", "5", "5", "n[1-2]", "3", "2", "2,1", "8", "2"]
    assert found["SLURMD_NODENAME"] == "n2"
    assert found["SLURM_TRES_PER_TASK"] == "cpu=8,gres/gpu=1"
    of_jsrun = jsrun_variables(tasks[1], tasks)
    assert (of_jsrun["OMPI_COMM_WORLD_RANK"], of_jsrun["OMPI_COMM_WORLD_SIZE"]) == ("1", "3")
    assert (of_jsrun["OMPI_COMM_WORLD_LOCAL_RANK"], of_jsrun["JSM_NAMESPACE_LOCAL_SIZE"]) == ("1", "2")
    assert of_jsrun["PMIX_RANK"] == "1"


def test_names() -> None:
    assert node_list(["n1", "n2", "n3"]) == "n[1-3]"
    assert node_list(["n2", "n1"]) == "n2,n1"  # rank 0 is on the first
    assert per_node_text([Task(0, 0, 0), Task(1, 0, 1), Task(2, 0, 2), Task(3, 1, 2)]) == "1(x2),2"
    values = {"j": "7", "t": "3", "x": "net"}
    assert filled("%x-%j_%4t-%%-%Z", values) == "net-7_0003-%-%Z"
    assert [slurm_seconds(text) for text in ("5", "1:30", "2:00:00", "1-1", "1-0:30", "1-0:0:5")] == [
        300, 90, 7200, 90000, 88200, 86405
    ]  # fmt: skip
