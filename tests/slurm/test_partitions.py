"""Partitions, reservations, licences, switches and the configuration; the environment of an allocation."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpcdl.batch.system import BatchError, HalfAnAllocation
from hpcdl.slurm.cluster import (
    Partition,
    PilotConstraints,
    not_preempted,
    parse_config,
    parse_licences,
    parse_licences_wanted,
    parse_partitions,
    parse_reservations,
    parse_topology,
    parse_version,
    pilot_constraints,
    qos_not_preempted,
)
from hpcdl.slurm.environment import allocation_of
from hpcdl.slurm.system import SYSTEM

RECORDINGS = Path(__file__).parents[1] / "recordings" / "slurm"


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text()


NODES = ("n1", "n2", "n3", "n4")


VERSIONS = pytest.mark.parametrize("version", ["22.05", "24.11"])


@VERSIONS
def test_partitions(version: str) -> None:
    found = {part.name: part for part in parse_partitions(recorded(f"{version}-partitions.txt"))}
    assert list(found) == ["normal", "scavenge", "cancelp", "short", "closed"]
    assert found["normal"] == Partition("normal", True, None, 1, None, "OFF", 0.0, True, 100, NODES)
    assert found["scavenge"] == Partition("scavenge", True, None, 1, None, "REQUEUE", 30.0, False, 1, NODES)
    assert found["short"] == Partition("short", True, 3600.0, 1, 2, "OFF", tier=50, nodes=NODES[:2])
    assert not found["closed"].open


def test_which_partitions_are_preempted_and_why_others_are_not() -> None:
    parts = parse_partitions(recorded("22.05-partitions.txt"))
    whys = {part.name: not_preempted(part, parts, part.nodes) for part in parts}
    assert (whys["scavenge"], whys["cancelp"]) == ("", "")
    assert whys["normal"] == "its PreemptMode is OFF"
    scavenge = next(part for part in parts if part.name == "scavenge")
    few = tuple(replace(part, nodes=NODES[:3]) if part.name == "normal" else part for part in parts)
    assert not_preempted(scavenge, few, NODES[:3]) == ""
    assert not_preempted(scavenge, few, NODES) == "no partition with a higher PriorityTier has these nodes"
    for mode in ("SUSPEND", "GANG,SUSPEND", "GANG", ""):
        stopped = replace(scavenge, preemption=mode)
        assert not_preempted(stopped, parts, NODES) == f"its PreemptMode is {mode or 'not reported'}"


QOS = "Name|Preempt|PreemptMode\nnormal|scavenger,low|cluster\nscavenger||cancel\nlow||off\nlone||requeue\n"


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("scavenger", "OFF", ""),
        ("low", "REQUEUE", "the PreemptMode of QOS low is off"),
        ("lone", "REQUEUE", "no QOS preempts lone"),
        ("nope", "REQUEUE", "there is no QOS nope"),
    ],
)
def test_which_qos_are_preempted(name: str, mode: str, why: str) -> None:
    assert qos_not_preempted(QOS, name, mode) == why
    for wrong in ("", "garbage\n", QOS + "half|\n"):
        with pytest.raises(BatchError):
            qos_not_preempted(wrong, name, mode)


@pytest.mark.parametrize("said", ["State=DRAIN", "State=INACTIVE", "RootOnly=YES", "ReqResv=YES", "MaxNodes=0"])
def test_partitions_that_take_nothing_from_us(said: str) -> None:
    (part,) = parse_partitions(f"PartitionName=p {said} MaxTime=1-00:00:00 PreemptMode=OFF State=UP")
    assert not part.open
    assert part.walltime_s == 86400.0


def test_reservations() -> None:
    found = {each.name: each for each in parse_reservations(recorded("22.05-reservations.txt"))}
    assert (found["mt"].start, found["mt"].end, found["mt"].nodes) == (1795328262.0, 1795331862.0, ("n3",))
    assert found["mt"].maintenance
    assert not found["mine"].maintenance
    assert (found["lics"].nodes, found["lics"].licences) == ((), {"fluent": 1})
    found = {each.name: each for each in parse_reservations(recorded("24.11-reservations.txt"))}
    assert [(each.nodes, each.licences, each.maintenance) for each in found.values()] == [
        (("n3",), {}, True),
        (("n4",), {}, False),
        ((), {"fluent": 1}, False),
    ]
    assert parse_reservations(recorded("22.05-no-reservations.txt").splitlines()[0]) != ()
    assert parse_reservations("No reservations in the system\n") == ()


def test_licences() -> None:
    assert parse_licences(recorded("22.05-licences.txt")) == {"fluent": 2, "matlab": 5}
    assert parse_licences("LicenseName=a Total=3 Used=5\n") == {"a": 0}
    assert parse_licences("No licenses configured in Slurm.\n") == {}
    assert parse_licences_wanted("matlab:2,fluent,x=3") == {"matlab": 2, "fluent": 1, "x": 3}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), PilotConstraints()),
        (("--account=a", "-C", "gpu"), PilotConstraints()),
        (("-L", "matlab:2,fluent"), PilotConstraints("", (("fluent", 1), ("matlab", 2)))),
        (("-Lmatlab:2",), PilotConstraints("", (("matlab", 2),))),
        (("--licenses=matlab", "--reservation=mine"), PilotConstraints("mine", (("matlab", 1),))),
        (("--reservation", "mine"), PilotConstraints("mine")),
        (("--reservation",), PilotConstraints()),
    ],
)
def test_what_the_sites_options_ask_for(options: tuple[str, ...], expected: PilotConstraints) -> None:
    assert pilot_constraints(options) == expected


def test_topology() -> None:
    tree = recorded("22.05-topology-tree.txt")
    assert parse_topology(tree, ["n1", "n3", "zz"]) == {"n1": ("spine", "leaf1"), "n3": ("spine", "leaf2")}
    assert parse_topology(recorded("three-levels-topology.txt"), ["n4"]) == {"n4": ("top", "row0", "s1")}
    blocks = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n"
    assert parse_topology(blocks, ["n4"]) == {"n4": ("b2",)}
    assert parse_topology("scontrol: No topology information available\n", ["n1"]) == {}


@VERSIONS
def test_configuration(version: str) -> None:
    config = parse_config(recorded(f"{version}-config.txt"))
    assert (config["KillWait"], config["PreemptMode"], config["PreemptType"]) == (
        "5 sec",
        "REQUEUE",
        "preempt/partition_prio",
    )
    assert config["SLURM_VERSION"].startswith(version)
    assert config["CliFilterPlugins"] == ""
    assert parse_version("slurm-wlm 22.05.8\n") == "22.05.8"
    assert parse_version("slurm 23.11.4\n") == "23.11.4"
    assert parse_version("") == ""
    assert parse_version("sinfo: something else") == ""


BATCH = {
    "SLURM_JOB_ID": "40",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_PARTITION": "normal",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_GPUS": "0,1",
    "SLURM_GPUS_ON_NODE": "2",
}


def test_an_allocation_from_its_variables() -> None:
    found = allocation_of(BATCH)
    assert found is not None
    assert (found.id, found.nodes, found.gpus, found.queue, found.here) == ("40", ("n1", "n2"), 2, "normal", "n1")
    assert (found.until, found.started_at) == (None, None)
    newer = allocation_of({**BATCH, "SLURM_JOB_START_TIME": "1795325000", "SLURM_JOB_END_TIME": "1795328600"})
    assert newer is not None
    assert (newer.started_at, newer.until) == (1795325000.0, 1795328600.0)


def test_older_names_of_the_variables() -> None:
    found = allocation_of({"SLURM_JOBID": "7", "SLURM_NODELIST": "gpu[08-10]"})
    assert found is not None
    assert (found.id, found.nodes) == ("7", ("gpu08", "gpu09", "gpu10"))


def test_outside_of_any_allocation() -> None:
    assert allocation_of({"SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}) is None
    assert allocation_of({"SLURM_JOB_ID": ""}) is None


@pytest.mark.parametrize(
    ("there", "missing"), [("SLURM_JOB_ID", "SLURM_JOB_NODELIST"), ("SLURM_JOB_NODELIST", "SLURM_JOB_ID")]
)
def test_half_of_the_variables(there: str, missing: str) -> None:
    with pytest.raises(HalfAnAllocation, match=rf"{there} is set\) but {missing} is missing"):
        allocation_of({there: BATCH[there], "SLURMD_NODENAME": "n1"})


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURMD_NODENAME": "n1"}, 0),
        ({}, None),  # salloc on a login node: nothing tells
        ({"SLURM_GPUS_PER_NODE": "4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, 3),
        ({"SLURM_GPUS_ON_NODE": "4", "SLURMD_NODENAME": "n1"}, 4),
        ({"SLURM_JOB_GPUS": "0-3,6"}, 5),
        ({"SLURM_JOB_GPUS": "0,1", "SLURM_GPUS_ON_NODE": "1"}, 2),
    ],
)
def test_gpus_of_an_allocation(variables: dict[str, str], gpus: int | None) -> None:
    found = allocation_of({"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", **variables})
    assert found is not None
    assert found.gpus == gpus


def test_variables_that_another_batch_job_must_not_inherit() -> None:
    names = SYSTEM.inherited({**BATCH, "SLURM_CONF": "x", "PATH": "y", "SLURM_STEP_ID": "0", "HPCDL_HOME": "z"})
    assert "SLURM_STEP_ID" in names
    assert "SLURMD_NODENAME" in names
    assert not {"SLURM_CONF", "PATH", "HPCDL_HOME"} & set(names)


def test_the_gpus_of_our_own_node_are_no_mask_for_another_one() -> None:
    mask = {"CUDA_VISIBLE_DEVICES": "3"}
    assert SYSTEM.inherited({"SLURM_JOB_ID": "7", **mask}) == ["CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"]
    assert SYSTEM.inherited(mask) == [], "outside of a batch job it is its user's own choice"
