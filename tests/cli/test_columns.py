"""`hpcdl ls` with columns, formats, sorting and filters, of jobs, nodes and GPUs."""

import json
from typing import Any

import pytest

from hpcdl.cli.columns import JOBS, folded
from hpcdl.cli.job_row import STATES
from hpcdl.cli.tables import GPUS, NODES, memory_text
from hpcdl.core.model.units import ranges
from hpcdl.core.model.world import JobState
from hpcdl.daemon.api.rows import JOB_KEYS
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row


@pytest.fixture
def many(fake: FakeDaemon) -> FakeDaemon:
    fake.world.jobs = {
        1: row(1, name="b", user="ada", state="RUNNING", gpus=2, step=50, total=100, eta_s=60.0, role="primary",
               placement={"n1": [0, 1]}, submitted_at=10.0),
        2: row(2, name="a", user="bob", submitted_at=20.0),
        3: row(3, name="c", user="ada", state="SUSPENDED", step=90, total=100, submitted_at=5.0),
        4: row(4, name="d", user="ada", state="DONE", exit_code=0, cause="done", detail="finished"),
    }  # fmt: skip
    return fake


def ids(run: Run, *words: str) -> list[str]:
    return run("ls", "--quiet", *words).out.split()


def test_columns_in_their_order(many: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("ls", "--columns", "name,id,DONE,user").out.splitlines() == [
        "NAME  ID  DONE  USER",
        "b      1  50 %  ada",
        "a      2     -  bob",
        "c      3  90 %  ada",
    ]


@pytest.mark.parametrize("form", list(JOBS.formats))
def test_every_format_shows_its_columns(many: FakeDaemon, hpcdl: Run, form: str) -> None:
    lines = hpcdl("ls", "--all", "--format", form).out.splitlines()
    titles = [JOBS.columns[name].column.title for name in JOBS.formats[form]]
    assert lines[0].split() == titles
    assert len(lines) == 5


@pytest.mark.parametrize("kind", [JOBS, NODES, GPUS], ids=lambda kind: kind.what)
def test_formats_name_columns_that_there_are(kind: Any) -> None:
    for names in kind.formats.values():
        assert set(names) <= kind.columns.keys()
    assert "default" in kind.formats
    assert "long" in kind.formats


def test_what_columns_need_of_a_row_there_is() -> None:
    assert {key for shown in JOBS.columns.values() for key in shown.keys} <= JOB_KEYS
    assert set(STATES) == set(JobState)


def test_cells_follow_from_the_keys_that_they_name() -> None:
    rows = [
        row(1, state="RUNNING", gpus=2, gpus_max=4, step=5, total=9, placement={"n1": [0, 1], "n2": [0]}, held=True,
            nodes_max=3, eta_s=70.0, submitted_at=10.0, weight=2.5, role="primary", priority=3, array=1, array_index=7),
        row(2),
        row(3, gpus_max=None, nodes=2, exit_code=1, cause="user error", name="名"),
    ]  # fmt: skip
    columns = {
        key: [each.get(key) for each in rows] for key in JOB_KEYS if any(each.get(key) is not None for each in rows)
    }
    for name, shown in JOBS.columns.items():
        assert shown.texts(columns, 3) == [shown.column.cell(each) for each in rows], name
        assert shown.texts({}, 2) == [shown.column.cell({})] * 2 if name != "id" else True


def test_sorting(many: FakeDaemon, hpcdl: Run) -> None:
    assert ids(hpcdl, "--sort", "name") == ["2", "1", "3"]
    assert ids(hpcdl, "--sort", "-name") == ["3", "1", "2"]
    assert ids(hpcdl, "--sort", "step") == ["1", "3", "2"], "without a step it comes last"
    assert ids(hpcdl, "--sort", "-step") == ["3", "1", "2"]
    assert ids(hpcdl, "--sort", "submitted") == ["3", "1", "2"]
    assert [each["id"] for each in hpcdl("ls", "--json", "--sort", "-id").value["jobs"]] == [3, 2, 1]
    lines = hpcdl("ls", "--columns", "id", "--sort", "name").out.split()
    assert lines == ["ID", "2", "1", "3"], "by a column that is not shown"


def test_filters_are_the_daemons(many: FakeDaemon, hpcdl: Run) -> None:
    hpcdl("ls", "--state", "running,queued", "--state", "Suspended", "--user", "ada", "--name", "sweep-*")
    path = many.requests[-1][1]
    assert "state=RUNNING%2CQUEUED%2CSUSPENDED" in path
    assert "user=ada" in path
    assert "name=sweep-%2A" in path
    assert "fields=" in path
    hpcdl("ls", "--json", "--state", "failed")
    assert "fields" not in many.requests[-1][1], "--json has whole rows"


@pytest.mark.parametrize(
    "words, told",
    [
        (("--columns", "id,colour"), "jobs have no column 'colour': id, name, user, state"),
        (("--columns", "id,nodess"), "jobs have no column 'nodess': did you mean nodes"),
        (("--sort", "-metrik"), "jobs have no column to sort by 'metrik': did you mean metric"),
        (("--columns", ","), "--columns names none: id, name"),
        (("--format", "wide"), "jobs have no format 'wide': default, long, times, gpus, ends"),
        (("--sort", "-colour"), "jobs have no column to sort by 'colour': id, name"),
        (("--state", "ASLEEP"), "jobs have no state 'ASLEEP': QUEUED, STARTING, RUNNING"),
        (("gpus", "--columns", "gpu,eta"), "gpus have no column 'eta': gpu, node, index"),
        (("nodes", "--sort", "eta"), "nodes have no column to sort by 'eta': node, agent"),
        (("nodes", "--state", "RUNNING"), "--state is for jobs"),
        (("gpus", "--all"), "--all is for jobs"),
        (("pods",), "'pods' is nothing to list: jobs, nodes, gpus are"),
        (("--watch", "0"), "0 is not from 0.1 to 86400 seconds"),
        (("nodes", "--watch", "soon"), "'soon' is no number of seconds"),
    ],
)
def test_what_there_is_not_is_one_line_that_says_what_there_is(
    many: FakeDaemon, hpcdl: Run, words: tuple[str, ...], told: str
) -> None:
    done = hpcdl("ls", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert told in done.err
    assert not many.requests


def test_nothing_of_what_was_asked_for(many: FakeDaemon, hpcdl: Run) -> None:
    many.world.jobs = {}
    assert hpcdl("ls", "--user", "eve").err == "hpcdl: no such jobs (finished ones: hpcdl ls --all)\n"


# --- arrays -----------------------------------------------------------------------------------------------------------


def member(number: int, index: int, **changes: Any) -> dict[str, Any]:
    return row(number, name=f"sweep[{index}]", array=12, array_index=index, **changes)


def test_waiting_members_of_an_array_are_one_line(fake: FakeDaemon, hpcdl: Run) -> None:
    rows = [member(12, 1, state="RUNNING", gpus=1), *(member(12 + n, 1 + n) for n in range(1, 100)), row(200)]
    fake.world.jobs = {each["id"]: each for each in rows}
    lines = hpcdl("ls").out.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["12", "sweep[1]", "RUNNING"],
        ["13-111", "sweep[2-100]", "99"],
        ["200", "job200", "QUEUED"],
    ]
    assert len(hpcdl("ls", "--no-fold").out.splitlines()) == 102
    assert len(hpcdl("ls", "--format", "long").out.splitlines()) == 102
    assert len(hpcdl("ls", "--columns", "id").out.splitlines()) == 102
    assert len(hpcdl("ls", "--quiet").out.splitlines()) == 101
    assert len(hpcdl("ls", "--json").value["jobs"]) == 101


def test_only_what_is_alike_is_folded() -> None:
    rows = [
        member(12, 1, state="DONE"),
        member(13, 2),
        member(14, 3, state="DONE"),
        member(15, 4, reason="another"),
        member(16, 5, gpus_max=4),
    ]
    found = folded(rows)
    assert [each["id"] for each in found] == ["12,14", "13,15", 16]
    assert "1 other reason" in found[1]["reason"]
    assert ranges([7, 1, 2, 3, 2]) == "1-3,7"


def test_a_folded_line_has_the_first_members_place_in_the_queue() -> None:
    wait = "waiting for 1 GPU: all 4 busy"
    places = ("; 12th in the queue", "; 9th in the queue, starts in about 5.0 s", "; more than 100 jobs are before it")
    rows = [member(12 + at, 1 + at, reason=wait + place) for at, place in enumerate(places)]
    assert folded(rows)[0]["reason"] == f"{wait}; the first is 9th in the queue, starts in about 5.0 s"
    assert folded(rows[:1]) == rows[:1]


def test_the_ids_of_a_folded_line_are_those_that_commands_take(fake: FakeDaemon, hpcdl: Run) -> None:
    rows = [row(each, name=f"t[{each - 2}]", array=3, array_index=each - 2, user="u") for each in range(3, 12)]
    for each in (rows[0], rows[4]):
        each.update(state="RUNNING", gpus=1)
    fake.world.jobs = {each["id"]: each for each in rows}
    (shown,) = (line.split()[0] for line in hpcdl("ls").out.splitlines() if "QUEUED" in line)
    assert shown == "4-6,8-11"
    waiting = [4, 5, 6, 8, 9, 10, 11]
    for verb in ("hold", "release", "suspend", "resume", "retry", "cancel"):
        assert hpcdl(verb, shown, "--quiet").out.split() == [str(each) for each in waiting]
        assert fake.requests[-1][2]["ids"] == waiting
    assert [each["id"] for each in hpcdl("wait", shown, "--json").value["jobs"]] == waiting
    assert hpcdl("submit", "--quiet", "--after", shown, "--", "true").code == 0
    assert fake.requests[-1][2]["jobs"][0]["after"] == waiting
    assert [each["id"] for each in hpcdl("show", shown, "--json").value["jobs"]] == waiting
    assert [each["job"] for each in hpcdl("why", shown, "--json").value["jobs"]] == waiting
    done = hpcdl("events", "--job", shown)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "'4-6,8-11' are several jobs, and one is meant here: 4, say" in done.err


def test_what_is_to_be_done_about_members_names_their_array() -> None:
    rows = [member(each, each - 11, reason=f"held by its user: hpcdl release {each}") for each in (12, 13)]
    (line,) = folded(rows)
    assert line["reason"] == f"held by its user: hpcdl release --array {rows[0]['array']}"
    assert folded(rows[1:]) == rows[1:], "a member that stands alone is named itself"


def test_what_is_so_of_some_members_only_says_of_how_many() -> None:
    places = [member(12 + at, 1 + at, note=f"{place} in queue") for at, place in enumerate(("1st", "2nd"))]
    (line,) = folded([*places, member(14, 3, note="held: hpcdl release 14")])
    assert line["note"] == f"1 of 3 held: hpcdl release --array {line['array']}; 1st in queue"


def test_members_that_a_sweep_names_are_folded_without_its_values() -> None:
    for names in (("t[lr=1]", "t[lr=]"), ("t[lr=0.1]", "t[lr=0.2]"), ("t1", "t2"), ("t{a}", "t{b}")):
        rows = [row(at + 3, name=name, array=3, array_index=at) for at, name in enumerate(names, 1)]
        assert [each["name"] for each in folded(rows)] == ["t[1-2]"]
    rows = [row(at + 3, name=f"a[b]c{at}", array=3, array_index=at) for at in (1, 2)]
    assert folded(rows)[0]["name"] == "a[b]c[1-2]"
    rows = [row(at + 3, name=f"t[{at % 2},lr={at}]", array=3, array_index=at % 2) for at in range(4)]
    (line,) = folded(rows)
    assert (line["id"], line["name"], line["jobs"]) == ("3-6", "t[0-1]", 4)


# --- nodes and GPUs ---------------------------------------------------------------------------------------------------


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    base = {"index": index, "uuid": f"GPU-{index}", "name": "V100", "memory_mib": 16384, "state": "ok", "detail": "",
            "holder": None, "role": None, "util": 0.0, "used_mib": 1024, "power_w": 50.0}  # fmt: skip
    return base | changes


@pytest.fixture
def cluster(fake: FakeDaemon) -> FakeDaemon:
    held = gpu(0, holder={"job": 7, "incarnation": 2}, role="primary", util=93.0, used_mib=12000, power_w=240.0)
    bad = gpu(1, avoided_until=86400.0, avoid_reason="Xid 79 twice", health="2 uncorrected ECC errors")
    nodes = [
        {"name": "n1", "connected": True, "lost": False, "reason": "", "cpus": 8, "gpus": [held, bad]},
        *({"name": f"n{n}", "connected": True, "lost": False, "reason": "", "gpus": [gpu(0)]} for n in (2, 3, 4)),
        {"name": "n9", "connected": False, "lost": False, "leaving": True, "reason": "cooling", "gpus": []},
    ]
    fake.answers["/v1/nodes"] = (200, json.dumps({"schema": 1, "nodes": nodes}).encode())
    return fake


def test_ls_gpus(cluster: FakeDaemon, hpcdl: Run) -> None:
    lines = hpcdl("ls", "gpus").out.splitlines()
    assert lines[0].split() == ["GPU", "KIND", "STATE", "JOB", "ROLE", "UTIL", "MEMORY", "POWER", "DETAIL"]
    assert lines[1].split() == ["n1:0", "V100", "ok", "7.2", "primary", "93", "%", "11.7/16", "GiB", "240", "W"]
    assert "excluded until 1970-01-0" in lines[2]
    assert lines[2].endswith(": Xid 79 twice; 2 uncorrected ECC errors")
    assert hpcdl("ls", "gpus", "--quiet").out.split() == ["n1:0", "n1:1", "n2:0", "n3:0", "n4:0"]
    rows = hpcdl("ls", "gpus", "--json").value["gpus"]
    assert (rows[0]["id"], rows[0]["node"], rows[0]["holder"]["job"]) == ("n1:0", "n1", 7)
    assert hpcdl("ls", "gpus", "--quiet", "--sort", "-util").out.split()[0] == "n1:0"
    assert hpcdl("ls", "gpus", "--columns", "gpu,avoided,why").out.splitlines()[0].split() == [
        "GPU", "EXCLUDED", "UNTIL", "WHY",
    ]  # fmt: skip


def test_ls_nodes_folds_what_is_alike(cluster: FakeDaemon, hpcdl: Run) -> None:
    done = hpcdl("ls", "nodes")
    assert [line.split()[:3] for line in done.out.splitlines()] == [
        ["NODE", "AGENT", "GPUS"],
        ["n1", "connected", "1/1/2"],
        ["n[2-4]", "connected", "0/1/1"],
        ["n9", "away", "0/0/0"],
    ]
    assert done.out.splitlines()[3].endswith("drained: cooling")
    assert done.err == "", "nobody waits for a drained node"
    assert len(hpcdl("ls", "nodes", "--no-fold").out.splitlines()) == 6
    assert hpcdl("ls", "nodes", "--sort", "-node", "--quiet").out.split() == ["n9", "n4", "n3", "n2", "n1"]
    assert hpcdl("ls", "nodes", "--columns", "node,jobs").out.splitlines()[1] == "n1    7"


def test_memory_in_words() -> None:
    assert memory_text(None, None) == "-"
    assert memory_text(512, 0) == "0.5/- GiB"
    assert memory_text(None, 16384) == "-/16 GiB"
