"""The adapter over a `run` that answers from recordings: what it asks, what it remembers, how it fails."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpcdl.batch.adapter import TIMEOUT_S, Allocation, BatchAdapter, Completed, PilotScript
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchState, PilotSpec
from hpcdl.slurm.adapter import Slurm
from hpcdl.slurm.jobs import PlannedJob
from hpcdl.slurm.text import TIMES

RECORDINGS = Path(__file__).parents[1] / "recordings" / "slurm"
NOW = 1795326462.0
SCRIPT = PilotScript(("true",), "hpcdl:x:p1", "pilot", "/dev/null")


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text()


class FakeSlurm:
    """Answers by the first pattern that the command matches; notes what was run."""

    def __init__(self, answers: Mapping[str, Completed | str]) -> None:
        self.answers = dict(answers)
        self.asked: list[list[str]] = []
        self.given: list[str] = []
        self.times: list[bool] = []

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        self.asked.append(list(argv))
        self.given.append(stdin)
        self.times.append(env == TIMES)
        line = " ".join(argv)
        for pattern, answer in self.answers.items():
            if re.search(pattern, line):
                return Completed(answer, "", 0) if isinstance(answer, str) else answer
        raise AssertionError(f"nobody expected {line}")

    def names(self) -> list[str]:
        return [argv[0] for argv in self.asked]


def fails(name: str, code: int = 1) -> Completed:
    return Completed("", recorded(f"22.05-error-{name}.txt"), code)


def hole() -> FakeSlurm:
    return FakeSlurm(
        {
            "sinfo --version": "slurm-wlm 22.05.8\n",
            "sinfo --json": recorded("22.05-hole-nodes.json"),
            "sinfo .*--Format": recorded("22.05-hole-nodes.txt"),
            "show partition": recorded("22.05-partitions.txt"),
            "show reservation": "No reservations in the system\n",
            "show licenses": recorded("22.05-licences.txt"),
            "show config": recorded("22.05-config.txt"),
            "show topology": recorded("22.05-topology-tree.txt"),
            "show job 99 ": fails("unknown-job"),
            "squeue .*PENDING": recorded("22.05-hole-expected.txt"),
            "squeue": recorded("22.05-hole-jobs.txt"),
            "sacct": fails("no-accounting"),
        }
    )


def slurm(run: FakeSlurm, *options: str) -> Slurm:
    return Slurm(run, options, {})


def test_it_is_a_batch_system() -> None:
    system: BatchAdapter = slurm(hole())
    assert system.kind == "slurm"


# --- holes


def test_idle_nodes_until_the_planned_job() -> None:
    run = hole()
    found = slurm(run).holes(NOW, ())
    assert [(each.queue, each.nodes, each.until) for each in found] == [
        (queue, ("n3", "n4"), 1795327061.0) for queue in ("normal", "scavenge", "cancelp")
    ]
    assert {each.why for each in found} == {"batch job 28 is expected on n[1-4]"}
    assert {(each.gpus, each.kind) for each in found} == {(4, "")}
    assert run.names() == ["sinfo", "scontrol", "scontrol", "squeue", "scontrol"]
    assert {each.queue: each.why_not for each in found if not each.preemptable} == {"normal": "its PreemptMode is OFF"}
    assert all(run.times)


def test_json_and_text_give_the_same_holes() -> None:
    without = Completed("", "sinfo: unrecognized option '--json'\n", 1)
    broken = FakeSlurm({**hole().answers, "sinfo --json": without})
    assert slurm(broken).holes(NOW, ()) == slurm(hole()).holes(NOW, ())


@pytest.mark.parametrize("answer", [Completed("", "sinfo: unrecognized option '--json'\n", 1), "{}", "no JSON at all"])
def test_once_without_json_it_is_not_tried_again(answer: Completed | str) -> None:
    run = FakeSlurm({**hole().answers, "sinfo --json": answer})
    system = slurm(run)
    assert len(system.holes(NOW, ())) == 3
    assert len(system.holes(NOW, ())) == 3
    assert sum(argv == ["sinfo", "--json"] for argv in run.asked) == 1


def test_our_own_waiting_pilot_ends_no_hole() -> None:
    assert {each.until for each in slurm(hole()).holes(NOW, ["28"])} == {None}


def test_reservations_limit_and_set_aside() -> None:
    answers = {
        **hole().answers,
        "sinfo --json": recorded("22.05-drained-reserved-nodes.json"),
        "show reservation": recorded("22.05-reservations.txt"),
    }
    assert slurm(FakeSlurm(answers)).holes(NOW, ()) == ()  # n3 is drained, n4 belongs to a reservation
    mine = slurm(FakeSlurm(answers), "--reservation=mine").holes(NOW, ["28"])
    assert {(each.nodes, each.until, each.why) for each in mine} == {
        (("n4",), 1795330062.0, "the reservation mine ends")
    }
    assert slurm(FakeSlurm(answers), "--reservation=mine").holes(1795326461.0, ["28"]) == ()  # not begun
    assert slurm(FakeSlurm(answers), "--reservation=other").holes(NOW, ["28"]) == ()


def test_a_maintenance_ahead_ends_the_hole_of_its_nodes() -> None:
    run = FakeSlurm({**hole().answers, "show reservation": recorded("22.05-reservations.txt")})
    found = {each.nodes: each for each in slurm(run).holes(NOW, ["28"]) if each.queue == "normal"}
    assert found[("n3",)].until == 1795328262.0
    assert found[("n3",)].why == "maintenance mt begins on n3"


def test_licences_that_a_pilot_asks_for() -> None:
    assert len(slurm(hole(), "-Lmatlab:5").holes(NOW, ())) == 3
    assert slurm(hole(), "-Lmatlab:6").holes(NOW, ()) == ()
    assert slurm(hole(), "--licenses=unheard-of").holes(NOW, ()) == ()
    run = FakeSlurm({**hole().answers, "show reservation": recorded("22.05-reservations.txt")})
    scarce = [each for each in slurm(run, "-L", "fluent:2").holes(1795330063.0, ["28"]) if each.queue == "normal"]
    assert [(each.nodes, each.until) for each in scarce] == [(("n4",), 1795332705.0)]
    assert scarce[0].why == "the reservation r3 takes licences of fluent"


def test_without_an_answer_nothing_is_known() -> None:
    for name in ("sinfo --json", "show partition", "show reservation", "squeue .*PENDING"):
        run = FakeSlurm({**hole().answers, name: fails("controller-away")})
        with pytest.raises(BatchError, match="Unable to contact slurm controller") as raised:
            slurm(run).holes(NOW, ())
        assert raised.value.away


def test_json_of_an_absent_controller_is_no_empty_cluster() -> None:
    run = FakeSlurm({**hole().answers, "sinfo --json": recorded("22.05-controller-away-nodes.json")})
    with pytest.raises(BatchError) as raised:
        slurm(run).holes(NOW, ())
    assert raised.value.away
    assert run.names() == ["sinfo"]


# --- who waits


def test_who_waits_for_which_nodes() -> None:
    head = recorded("22.05-hole-expected.txt").partition("\n")[0]
    row = "{0}|{1}|1795327061|{2}|{3}|{4}|{5}|{6}|{7}|{8}|{0}|\n"
    rows = [
        (1, "normal", "n[3-4]", 2, "", "(null)", "N/A", "Resources", "(null)"),
        (2, "normal", "(null)", 1, "", "(null)", "gres:gpu:2", "Priority", "(null)"),
        (3, "normal", "(null)", 1, "", "(null)", "gres:gpu:a100:2", "Priority", "(null)"),
        (4, "normal", "(null)", 1, "n2", "(null)", "N/A", "Resources", "(null)"),
        (5, "normal", "n[1-2]", "2-4", "", "bigmem", "N/A", "Resources", "(null)"),
        (6, "normal", "(null)", 1, "", "(null)", "N/A", "Dependency", "(null)"),
        (7, "scavenge", "n1", 1, "", "(null)", "N/A", "Resources", "hpcdl:other:p1"),
        (8, "scavenge", "n1", 1, "", "(null)", "N/A", "Resources", "hpcdl:x:p1"),
        (9, "scavenge", "n1", 1, "", "(null)", "N/A", "Nodes required for job are DOWN, DRAINED or reserved", "(null)"),
    ]
    text = head + "\n" + "".join(row.format(*each) for each in rows)
    node = "NodeName={} Gres={} ActiveFeatures={} State=IDLE\n"
    told = [("n1", "gpu:a100:4(S:0-1)", "bigmem,fast"), ("n2", "gpu:v100:4", "fast"), ("n3", "gpu:4", "(null)")]
    shown = "".join(node.format(*each) for each in told)
    system = slurm(FakeSlurm({**hole().answers, "squeue .*PENDING": text, "show node": shown}))
    assert system.waiting(()) == (), "nobody has looked yet"
    system.holes(NOW, ())
    found = {each.id: (each.count, each.nodes, each.preempts) for each in system.waiting(["8"])}
    below = frozenset({"scavenge", "cancelp", "closed"})
    assert found == {
        "1": (2, ("n1", "n2", "n3", "n4"), below),
        "2": (1, ("n1", "n2", "n3", "n4"), below),
        "3": (1, ("n1",), below),
        "4": (1, ("n2",), below),
        "5": (2, ("n1",), below),
        "9": (1, ("n1", "n2", "n3", "n4"), frozenset()),
    }


@pytest.mark.parametrize(
    ("features", "kinds", "takes"),
    [
        ("", (), True),
        ("fast", (), True),
        ("fast&bigmem", (), True),
        ("slow|fast", (), True),
        ("slow&fast", (), False),
        ("", ("a100",), True),
        ("", ("v100",), False),
        ("[rack1*2&rack2*1]", (), False),
        ("fast*2", (), False),
    ],
)
def test_which_nodes_will_do(features: str, kinds: tuple[str, ...], takes: bool) -> None:
    job = PlannedJob("1", None, (), features=features, kinds=frozenset(kinds))
    assert job.takes({"fast", "bigmem"}, {"a100"}) is takes


# --- poll


def test_one_call_for_all_ids() -> None:
    run = hole()
    found = slurm(run).poll(["27", "28"])
    assert (found["27"].state, found["28"].state) == (BatchState.RUNNING, BatchState.PENDING)
    asked = [argv for argv in run.asked if argv[0] == "squeue"]
    assert len(asked) == 1
    assert "--jobs=27,28" in asked[0]
    assert "sacct" not in run.names()
    assert slurm(run).poll([]) == {}


def test_what_squeue_does_not_list_is_missing_and_nothing_else_is_asked() -> None:
    run = hole()
    assert slurm(run).poll(["27", "99"])["99"].state is BatchState.MISSING
    assert run.names().count("sacct") == run.names().count("scontrol") == 0


SHOWN = (
    "JobId=27 JobName=x UserId=ann(7) Comment=no JobState=RUNNING Reason=None ExitCode=0:0 StartTime=1795326461 "
    "EndTime=1795327061 Partition=normal NodeList=n[1-2] BatchHost=n1 NumNodes=2 Comment=a|b\nc  Power= \n\n"
)


def test_a_second_command_is_asked_for_each_batch_job_alone() -> None:
    run = FakeSlurm({**hole().answers, "show job 27 ": SHOWN})
    found = slurm(run).confirm(["27", "99"])
    assert (found["27"].state, found["27"].nodes, found["27"].until) == (BatchState.RUNNING, ("n1", "n2"), 1795327061.0)
    assert found["99"].state is BatchState.GONE


@pytest.mark.parametrize(
    "answer", ["", "garbage\n", SHOWN[:150], SHOWN.replace("JobId=27", "JobId=28"), fails("scontrol-away")]
)
def test_a_second_command_that_says_nothing_proves_nothing(answer: str | Completed) -> None:
    run = FakeSlurm({**hole().answers, "show job 27 ": answer})
    assert slurm(run).confirm(["27"])["27"].state is BatchState.UNKNOWN


def test_the_accounting_tells_how_it_ended_and_no_more_than_that() -> None:
    invalid = {"show job": fails("unknown-job")}
    run = FakeSlurm({**invalid, "sacct": recorded("accounting.txt")})
    found = slurm(run).confirm(["41", "44", "99"])
    assert (found["41"].state, found["41"].preempted) == (BatchState.ENDED, True)
    assert (found["44"].state, found["99"].state) == (BatchState.GONE, BatchState.GONE), "it may run there for ever"
    assert "--jobs=41,44,99" in run.asked[-1]
    away = Completed("", "sacct: error: slurm_persist_conn_open_without_init: failed to open: Connection refused\n", 1)
    for answer in (away, "", "garbage\n"):
        for shown, state in ((fails("unknown-job"), BatchState.GONE), ("", BatchState.UNKNOWN)):
            run = FakeSlurm({"show job": shown, "sacct": answer})
            assert slurm(run).confirm(["41"])["41"].state is state


def test_without_accounting_it_is_not_asked_again() -> None:
    run = hole()
    system = slurm(run)
    for _ in range(2):
        assert system.confirm(["99"])["99"].state is BatchState.GONE
    assert run.names().count("sacct") == 1


GARBAGE = "aGVsbG8gd29ybGQ=\nd2hhdCBpcyB0aGlz\n"


PRINTED = {
    "sinfo --json": "22.05-hole-nodes.json",
    "sinfo .*--Format": "22.05-hole-nodes.txt",
    "show partition": "22.05-partitions.txt",
    "show reservation": "22.05-reservations.txt",
    "show licenses": "22.05-licences.txt",
    "squeue .*PENDING": "22.05-hole-expected.txt",
    "squeue": "22.05-hole-jobs.txt",
}


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize("shape", ["nothing", "blank", "garbage", "cut", "garbage behind it", "another's header"])
def test_an_answer_that_is_not_understood_to_its_last_line_is_none(name: str, shape: str) -> None:
    text = recorded(PRINTED[name])
    last = text.rstrip().rpartition("\n")[2]
    wrong = {
        "nothing": "",
        "blank": "\n\n",
        "garbage": GARBAGE,
        "cut": text.rstrip()[: 2 - len(last)],
        "garbage behind it": text + GARBAGE,
        "another's header": "JOBID|PARTITION|\n",
    }[shape]
    system = slurm(FakeSlurm({**hole().answers, "sinfo --json": GARBAGE, name: wrong}), "-Lmatlab:1")
    if name == "sinfo --json":  # then it is asked in text, and that is as good
        assert system.holes(NOW, ()) == slurm(hole(), "-Lmatlab:1").holes(NOW, ())
        return
    with pytest.raises(BatchError):
        system.poll(["27"]) if name == "squeue" else system.holes(NOW, ())


def test_the_words_of_a_controller_that_is_away_count_whatever_the_exit_code() -> None:
    header = recorded(PRINTED["squeue"]).partition("\n")[0] + "\n"
    run = FakeSlurm(
        {
            "sinfo --version": "slurm 22.05.8\n",
            "squeue": Completed(header, recorded("22.05-error-controller-away.txt"), 0),
        }
    )
    with pytest.raises(BatchError) as raised:
        slurm(run).poll(["27"])
    assert raised.value.away


def test_unknown_ids_are_no_error() -> None:
    run = FakeSlurm({**hole().answers, "squeue": fails("unknown-job")})
    assert slurm(run).poll(["98", "99"])["98"].state is BatchState.MISSING


@pytest.mark.parametrize("version", ["23.02", "23.11"])
def test_newer_versions_are_polled_in_json(version: str) -> None:
    run = FakeSlurm(
        {
            "sinfo --version": f"slurm {version}.4\n",
            "squeue .*--json": recorded(f"{version}-states-jobs.json"),
            "sacct": fails("no-accounting"),
        }
    )
    found = slurm(run).poll(["31", "33", "99"])
    assert (found["31"].preempted, found["33"].code) == (True, 7)
    assert found["99"].state is BatchState.MISSING
    assert set(found) == {"31", "33", "99"}


def test_an_absent_controllers_json_makes_nothing_missing() -> None:
    answer = recorded("22.05-controller-away-jobs.json")
    run = FakeSlurm({"sinfo --version": "slurm 23.11.4\n", "squeue .*--json": answer})
    with pytest.raises(BatchError) as raised:
        slurm(run).poll(["27"])
    assert raised.value.away


def test_marks() -> None:
    run = FakeSlurm({"squeue": recorded("22.05-states-jobs.txt")})
    assert [(job.mark, job.id) for job in slurm(run).marked("hpcdl:rec:")] == [("hpcdl:rec:p1", "31")]
    assert slurm(run).marked("hpcdl:other:") == ()


def test_a_comment_may_hold_anything() -> None:
    text = recorded("22.05-hole-jobs.txt")
    broken = text.replace("|hpcdl:x:p1|", "|").replace("epochs: 3 | fold 1|", "epochs: 3 |\n99|fold 1|\n|")
    found = slurm(FakeSlurm({**hole().answers, "squeue": broken})).poll(["27", "99"])
    assert (found["27"].state, found["99"].state) == (BatchState.RUNNING, BatchState.MISSING)


# --- submit, cancel, signal, launch


def test_submit() -> None:
    run = FakeSlurm({"sbatch": recorded("submit-banner.txt")})
    assert slurm(run).submit(PilotSpec(2, 600.0), SCRIPT) == "18"
    assert run.given == ["#!/bin/sh\nexec true\n"]
    assert run.times == [False]  # a batch job inherits the environment of sbatch


def test_submit_from_within_a_batch_job() -> None:
    run = FakeSlurm({"sbatch": "18\n"})
    Slurm(run, (), {"SLURM_JOB_ID": "1", "SLURM_CONF": "/x"}).submit(PilotSpec(1, 600.0), SCRIPT)
    assert run.asked[0][:4] == ["env", "-u", "SLURM_JOB_ID", "sbatch"]


def test_refused_and_away() -> None:
    with pytest.raises(BatchError, match="Invalid partition name specified") as refused:
        slurm(FakeSlurm({"sbatch": fails("partition")})).submit(PilotSpec(1, 600.0, "nosuch"), SCRIPT)
    assert (refused.value.away, refused.value.again) == (False, False)
    with pytest.raises(BatchError) as away:
        slurm(FakeSlurm({"sbatch": fails("sbatch-away")})).submit(PilotSpec(1, 600.0), SCRIPT)
    assert (away.value.away, away.value.again) == (True, True)


def test_cancelling_what_is_gone_is_no_error() -> None:
    gone = Completed("", "scancel: error: Kill job error on job id 99: Invalid job id specified\n", 1)
    run = FakeSlurm({"scancel": gone})
    slurm(run).cancel(["99"])
    slurm(run).signal("99", "TERM")
    assert run.asked == [["scancel", "99"], ["scancel", "--signal=TERM", "99"]]
    slurm(run).cancel([])
    assert len(run.asked) == 2


def test_what_cannot_be_cancelled_is_told() -> None:
    denied = Completed("", "scancel: error: Kill job error on job id 9: Access/permission denied\n", 0)
    with pytest.raises(BatchError, match="Access/permission denied") as refused:
        slurm(FakeSlurm({"scancel": denied})).cancel(["9"])
    assert not refused.value.away
    with pytest.raises(BatchError) as away:
        slurm(FakeSlurm({"scancel": fails("scancel-away", 8)})).cancel(["9"])
    assert away.value.away


def test_launch_and_topology() -> None:
    system = slurm(hole())
    launched = system.launch(Allocation("slurm", "40", ("n1", "n2"), 4), "n2", ["agent"])
    assert "--nodelist=n2" in launched
    assert system.topology(["n1"]) == {"n1": ("spine", "leaf1")}


# --- allocation, capabilities


def test_the_end_of_an_allocation_is_asked_where_no_variable_has_it() -> None:
    run = hole()
    found = slurm(run).allocation({"SLURM_JOB_ID": "27", "SLURM_JOB_NODELIST": "n[1-2]"})
    assert found is not None
    assert (found.started_at, found.until, found.queue) == (1795326461.0, 1795327061.0, "normal")
    told = {"SLURM_JOB_ID": "27", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_END_TIME": "1795327061"}
    quiet = FakeSlurm({})
    assert slurm(quiet).allocation(told) is not None
    assert quiet.asked == []


def test_without_an_answer_the_end_of_an_allocation_is_not_known() -> None:
    run = FakeSlurm({"squeue": fails("controller-away")})
    found = slurm(run).allocation({"SLURM_JOB_ID": "27", "SLURM_JOB_NODELIST": "n[1-2]"})
    assert found is not None
    assert (found.until, found.nodes) == (None, ("n1", "n2"))
    assert slurm(run).allocation({}) is None


def test_capabilities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("sinfo", "squeue", "scontrol", "sbatch", "scancel"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    can = slurm(hole()).capabilities()
    assert (can.kind, can.version, can.json, can.preemption) == ("slurm", "22.05.8", True, "REQUEUE (partition_prio)")
    assert can.queues == ("normal", "scavenge", "cancelp", "short", "closed")
    assert can.limits["KillWait"] == "5 sec"
    assert can.limits["short MaxTime"] == "3600 s"
    assert can.limits["short MaxNodes"] == "2"
    assert can.limits["scavenge GraceTime"] == "30 s"
    assert can.limits["closed State"] == "takes no jobs"
    assert (can.commands["sbatch"], can.commands["srun"]) == (True, False)
    assert "srun is not on PATH" in can.missing
    assert any(line.startswith("no accounting") for line in can.missing)


def test_capabilities_of_a_slurm_without_json() -> None:
    run = FakeSlurm({**hole().answers, "sinfo --json": Completed("", "sinfo: unrecognized option '--json'\n", 1)})
    can = slurm(run).capabilities()
    assert not can.json
    assert "sinfo has no --json here: nodes are read as text" in can.missing


GROUPS = (
    "NODELIST|STATE|GRES_USED|\n"
    "n[1-2]|allocated|gpu:4|\nn3|planned|gpu:0|\nn[4-5]|idle|gpu:0|\nn6|idle|gpu:1|\nn7|drained|gpu:0|\n"
    "n8|reserved|gpu:0|\nn9|idle~|gpu:0|\nn10|idle*|gpu:0|\n"
)


def test_what_idles_is_one_question_in_text() -> None:
    run = FakeSlurm({"^sinfo --Format": GROUPS})
    slurm = Slurm(run)
    seen = slurm.idle_nodes()
    assert (sorted(seen.names), seen.nodes) == (["n3", "n4", "n5"], 10)
    assert slurm.idle_nodes() == seen
    assert len(run.asked) == 2


@pytest.mark.parametrize("text", ["", "sinfo: unrecognized option", "NODELIST|STATE|\nn1|idle|\n"])
def test_what_idles_is_read_as_json_where_text_is_not_understood(text: str) -> None:
    run = FakeSlurm({"--json": recorded("22.05-hole-nodes.json"), "^sinfo --Format": text})
    slurm = Slurm(run)
    seen = slurm.idle_nodes()
    assert (sorted(seen.names), seen.nodes) == (["n3", "n4"], 4)
    assert slurm.idle_nodes() == seen
    assert [argv[1][:8] for argv in run.asked] == ["--Format", "--json", "--json"]


def test_no_node_in_text_and_in_json_is_no_answer() -> None:
    run = FakeSlurm({"--json": '{"nodes": [], "errors": []}', "^sinfo --Format": "NODELIST|STATE|GRES_USED|\n"})
    with pytest.raises(BatchError, match="sinfo: it lists no node at all"):
        Slurm(run).idle_nodes()


def test_an_answer_that_is_neither_is_none() -> None:
    run = FakeSlurm({"sinfo": "Welcome to the cluster\n"})
    with pytest.raises(BatchError, match="sinfo: it printed no header: Welcome to the cluster"):
        Slurm(run).idle_nodes()
    away = FakeSlurm({"sinfo": fails("controller-away")})
    with pytest.raises(BatchError) as error:
        Slurm(away).idle_nodes()
    assert error.value.away
    assert len(away.asked) == 1
