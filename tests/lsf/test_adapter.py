"""The LSF adapter over a run that answers from a script: which commands are asked, and what comes of their answers."""

import pytest

from hpcdl.batch.adapter import Allocation, BatchAdapter, Completed
from hpcdl.batch.system import BatchError, HalfAnAllocation, Unsupported
from hpcdl.core.model.pilot import BatchState
from hpcdl.lsf.adapter import LsfSettings
from tests.lsf.scripted import BHOSTS, BQUEUES, NOTHING, NOW, USAGE, WAIT, Fake, fields, json_of, relative


def test_it_is_a_batch_system() -> None:
    system: BatchAdapter = Fake().lsf()
    assert system.kind == "lsf"
    assert system.topology(["n1"]) == {}


def test_poll_keeps_good_rows_of_a_failed_call() -> None:
    told = Completed(json_of(jobid="5", stat="RUN", exec_host="4*n1.x"), "Job <6> is not found\n", 255)
    fake = Fake(bjobs=told)
    seen = fake.lsf().poll(["5", "6", "7"])
    assert {job: each.state for job, each in seen.items()} == {
        "5": BatchState.RUNNING,
        "6": BatchState.MISSING,
        "7": BatchState.MISSING,
    }
    assert seen["5"].nodes == ("n1",)
    assert fake.of("bhist") == []
    assert len(fake.of("bjobs")) == 1


NOT_FOUND = Completed("", "Job <6> is not found\n", 255)
NO_HISTORY = Completed("", "No matching job found\n", 255)
HISTORY = "\nJob <6>, User <a>, Command <x>\nWed Jan 21 22:12:00: {};\n"


@pytest.mark.parametrize(
    ("bjobs", "bhist", "state"),
    [
        (NOT_FOUND, HISTORY.format("Done successfully."), BatchState.ENDED),
        (NOT_FOUND, HISTORY.format("Running with execution home </x>"), BatchState.RUNNING),
        (NOT_FOUND, NO_HISTORY, BatchState.GONE),
        (NOT_FOUND, NOTHING, BatchState.UNKNOWN),
        (NOT_FOUND, "aGVsbG8gd29ybGQ=\n", BatchState.UNKNOWN),
        (NOTHING, NO_HISTORY, BatchState.UNKNOWN),
        ("aGVsbG8gd29ybGQ=\n", NO_HISTORY, BatchState.UNKNOWN),
        ('{"RECORDS": []}', NO_HISTORY, BatchState.UNKNOWN),
        (json_of(jobid="6", stat="RUN"), NO_HISTORY, BatchState.RUNNING),
        (json_of(jobid="6", stat="EXIT"), HISTORY.format("Starting (Pid 5)"), BatchState.RUNNING),
    ],
)
def test_only_two_commands_that_say_so_make_it_gone(
    bjobs: Completed | str, bhist: Completed | str, state: BatchState
) -> None:
    answers: list[Completed | str] = [json_of(jobid="5", stat="RUN"), bjobs]
    lsf = Fake(bjobs=answers, bhist=bhist).lsf()
    lsf.poll(["5"])
    assert lsf.confirm(["6"])["6"].state is state


def test_a_bhist_that_hangs_is_not_asked_for_the_others() -> None:
    away = BatchError("bhist has not answered within 30 s", away=True)
    fake = Fake(bjobs=[json_of(jobid="5", stat="RUN"), NOT_FOUND], bhist=away)
    lsf = fake.lsf()
    lsf.poll(["5"])
    with pytest.raises(BatchError, match="bhist has not answered"):
        lsf.confirm(["6", "7", "8"])
    assert len(fake.of("bhist")) == 1


def test_without_bhist_bjobs_is_asked_for_it_alone() -> None:
    assert Fake(bjobs=NOT_FOUND).lsf(without=("bhist",)).confirm(["6"])["6"].state is BatchState.GONE


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("bjobs", json_of(jobid="5")),
        ("bjobs", [USAGE, fields(jobid="5", stat="RUN") + "aGVsbG8gd29ybGQ=\n"]),
        ("bjobs", [USAGE, fields(jobid="5", stat="RUN") + fields(jobid="6", stat="RUN")[:20]]),
        ("bjobs", "aGVsbG8gd29ybGQ=\n"),
    ],
)
def test_half_an_answer_is_none(command: str, answer: Completed | str | list[Completed | str]) -> None:
    with pytest.raises(BatchError):
        Fake(**{command: answer}).lsf().poll(["5", "6"])


@pytest.mark.parametrize("command", ["bhosts", "bqueues"])
@pytest.mark.parametrize("shape", ["{0}aGVsbG8gd29ybGQ=\n", "aGVsbG8gd29ybGQ=\n", ""])
def test_holes_are_not_taken_from_garbage(command: str, shape: str) -> None:
    text = {"bhosts": BHOSTS, "bqueues": BQUEUES}[command]
    fake = Fake(**{command: shape.format(text), "bslots": "No backfill window exists at this time\n"})
    if command == "bqueues" and shape.startswith("{0}"):
        assert fake.lsf().holes(NOW, ()) == (), "a line inside of a queue's prose"
        return
    with pytest.raises(BatchError):
        fake.lsf().holes(NOW, ())


def test_nothing_printed_is_nothing_known() -> None:
    fake = Fake(bjobs=NOTHING)
    seen = fake.lsf().poll(["5"])
    assert (seen["5"].state, seen["5"].reason) == (BatchState.UNKNOWN, "bjobs printed nothing")
    assert fake.of("bhist") == []
    assert len(fake.pauses) == 3
    with pytest.raises(BatchError, match="nobody knows whether") as error:
        fake.lsf().marked("hpcdl:ab:")
    assert error.value.away
    assert fake.lsf().poll([]) == {}


def test_all_not_found_is_an_answer() -> None:
    none = Completed("", "Job <5> is not found\n", 255)
    assert Fake(bjobs=none).lsf().poll(["5"])["5"].state is BatchState.MISSING


def test_the_form_that_is_not_refused_is_remembered() -> None:
    fake = relative()
    lsf = fake.lsf(without=("bslots", "jsrun", "jobstat"))
    job = lsf.poll(["113"])["113"]
    assert (job.state, job.mark, job.nodes) == (BatchState.RUNNING, "hpcdl:ab:p7", ("n1",))
    assert (job.started_at, job.until) == (NOW - 480, NOW + 1320)
    assert [argv[1] for argv in fake.of("bjobs")] == ["-o", "-noheader", "-noheader", "-UF"]
    lsf.poll(["113"])
    assert fake.of("bjobs")[4:] == [["bjobs", "-UF", "113"]]


def test_a_form_that_is_refused_later_is_looked_for_again() -> None:
    fake = Fake(bjobs=[json_of(jobid="5", stat="RUN"), USAGE, fields(jobid="5", stat="RUN")])
    lsf = fake.lsf()
    lsf.poll(["5"])
    assert lsf.poll(["5"])["5"].state is BatchState.RUNNING
    assert [argv[1] for argv in fake.of("bjobs")] == ["-o", "-o", "-noheader"]


def test_all_forms_refused() -> None:
    with pytest.raises(Unsupported, match="in none of the forms that hpcdl knows: bjobs: invalid option"):
        Fake(bjobs=USAGE).lsf().poll(["5"])


def test_bjobs_that_fails_otherwise() -> None:
    with pytest.raises(BatchError, match="bjobs: User <ann> is not allowed") as error:
        Fake(bjobs=Completed("", "User <ann> is not allowed\n", 255)).lsf().poll(["5"])
    assert not error.value.away
    with pytest.raises(BatchError, match="LIM is down") as error:
        Fake(bjobs=Completed("", "ls_getclustername(): LIM is down; try later\n", 255)).lsf().poll(["5"])
    assert error.value.away


def test_lsf_that_asks_to_wait_is_asked_again() -> None:
    fake = Fake(bjobs=[WAIT, WAIT, json_of(jobid="5", stat="RUN")])
    assert fake.lsf().poll(["5"])["5"].state is BatchState.RUNNING
    assert fake.pauses == [0.5, 1.0]
    fake = Fake(bjobs=WAIT)
    with pytest.raises(BatchError, match="Please wait") as error:
        fake.lsf().poll(["5"])
    assert error.value.away
    assert len(fake.of("bjobs")) == 4


def test_marks() -> None:
    text = "".join([
        fields(jobid="1", stat="EXIT", job_description="hpcdl:ab:p1"),
        fields(jobid="2", stat="PEND", job_description="hpcdl:ab:p1"),
        fields(jobid="3", stat="DONE", job_description="hpcdl:ab:p1"),
        fields(jobid="4", stat="RUN", job_description="hpcdl:other:p1"),
        fields(jobid="5", stat="RUN", job_name="hpcdl:ab:p2"),
        fields(jobid="6", stat="RUN", job_name="mine"),
    ])  # fmt: skip
    lsf = Fake(bjobs=[USAGE, text]).lsf()
    assert [(job.mark, job.id) for job in lsf.marked("hpcdl:ab:")] == [
        *(("hpcdl:ab:p1", number) for number in "123"),
        ("hpcdl:ab:p2", "5"),
    ]
    assert Fake(bjobs=Completed("", "No job found\n", 255)).lsf().marked("hpcdl:ab:") == ()


def test_holes_of_backfill_windows() -> None:
    fake = Fake(bslots="SLOTS:    8\nRUNTIME:  0 hours 10 minutes 0 seconds\nHOSTS:    4*n1.x 4*n3.x \n")
    (hole,) = fake.lsf(ways=LsfSettings(select="CN")).holes(NOW, ["1"])
    assert (hole.nodes, hole.count, hole.until, hole.queue) == (("n1", "n3"), 2, NOW + 600, "fill")
    assert (hole.gpus, hole.kind, hole.walltime_s) == (2, "teslav100", 3600.0)
    assert fake.of("bslots") == [["bslots", "-l", "-Rselect[CN]"]]


def test_holes_where_bslots_has_no_long_form() -> None:
    refused = Completed("", "bslots: illegal option -- l\n", 255)
    table = "SLOTS          RUNTIME\n9              UNLIMITED\n"
    (hole,) = Fake(bslots=[refused, table]).lsf().holes(NOW, ())
    assert (hole.nodes, hole.count, hole.until) == ((), 2, None)


@pytest.mark.parametrize("text", ["No backfill window exists at this time\n", "No backfill window meets these.\n"])
@pytest.mark.parametrize("code", [0, 255])
def test_no_window_is_no_hole_and_no_error(text: str, code: int) -> None:
    assert Fake(bslots=Completed("", text, code)).lsf().holes(NOW, ()) == ()
    assert Fake(bslots=Completed(text, "", code)).lsf().holes(NOW, ()) == ()


def test_holes_without_bslots_are_idle_hosts() -> None:
    refused = Completed("", "bslots: illegal option -- l\nUsage: bslots\n", 255)
    for fake, without in ((Fake(), ("bslots",)), (Fake(bslots=refused), ())):
        lsf = fake.lsf(without=without)
        (hole,) = lsf.holes(NOW, ())
        assert (hole.nodes, hole.until, hole.queue) == (("n1", "n3"), None, "killable")
        assert "no bslots" in hole.why
        asked = len(fake.of("bslots"))
        lsf.holes(NOW, ())
        assert len(fake.of("bslots")) == asked


def test_holes_that_cannot_be_told() -> None:
    with pytest.raises(BatchError, match="bslots: ") as error:
        Fake(bslots=NOTHING).lsf().holes(NOW, ())
    assert error.value.away
    with pytest.raises(BatchError, match="bslots: no length"):
        Fake(bslots="SLOTS   RUNTIME\n8       3 moons\n").lsf().holes(NOW, ())
    with pytest.raises(BatchError, match="bhosts: some trouble"):
        Fake(bhosts=Completed("", "some trouble\n", 255)).lsf().holes(NOW, ())
    with pytest.raises(BatchError, match="bqueues: exit code 1"):
        Fake(bqueues=Completed("", "", 1)).lsf().holes(NOW, ())


def test_a_form_of_bhosts_that_is_refused_is_not_asked_again() -> None:
    refused = Completed("", "bhosts: invalid option -- 'X'\nUsage:\nbhosts [-h]\n", 255)
    fake = Fake(bhosts=[refused, BHOSTS], bslots="No backfill window exists at this time\n")
    lsf = fake.lsf()
    for _ in range(2):
        lsf.holes(NOW, ())
    assert fake.of("bhosts") == [["bhosts", "-w", "-X"], ["bhosts", "-w"], ["bhosts", "-w"]]


def test_gpus_are_not_asked_for_at_each_poll() -> None:
    fake = Fake(bslots="No backfill window exists at this time\n")
    lsf = fake.lsf()
    for _ in range(3):
        assert lsf.holes(NOW, ()) == ()
    assert len(fake.of("lshosts")) == 1
    assert len(fake.of("bslots")) == 3


ENVIRON = {"LSB_JOBID": "113", "LSB_QUEUE": "fill", "LSB_MCPU_HOSTS": "n1.x 4 n3.x 4"}


def test_an_allocation_with_start_and_end_from_bjobs() -> None:
    listed = json_of(jobid="113", stat="RUN", exec_host="4*n1.x:4*n3.x", start_time="Jan 21 22:00", time_left="0:30 L")
    fake = Fake(bjobs=listed)
    lsf = fake.lsf()
    found = lsf.allocation(ENVIRON)
    assert found == Allocation("lsf", "113", ("n1", "n3"), 2, NOW + 1800, NOW - 1200, "fill", "n1")
    assert lsf.poll(["113"])["113"].started_at == found.started_at
    assert lsf.launch(found, "n3", ["agent"]) == ("blaunch", "-z", "n3.x", "agent")
    with pytest.raises(BatchError, match="n2 is no node of LSF job 113"):
        lsf.launch(found, "n2", ["agent"])


def test_an_allocation_while_lsf_is_away() -> None:
    fake = Fake(bjobs=BatchError("bjobs has not answered within 10 s", away=True))
    found = fake.lsf(host="elsewhere").allocation({**ENVIRON, "HOSTNAME": "n3"})
    assert found == Allocation("lsf", "113", ("n1", "n3"), None, None, None, "fill", "n3")
    assert fake.lsf().allocation({"PATH": "/bin"}) is None
    with pytest.raises(HalfAnAllocation):
        fake.lsf().allocation({"LSB_JOBID": "113"})


def test_agents_from_a_launch_node_by_jsrun() -> None:
    environ = {"LSB_JOBID": "113", "LSB_MCPU_HOSTS": "batch2 1 h1 42 h2 42"}
    fake = Fake()
    lsf = fake.lsf(without=(), host="batch2")
    found = lsf.allocation(environ)
    assert found is not None
    assert (found.nodes, found.here, found.gpus) == (("h1", "h2"), "", 0)
    assert lsf.launch(found, "h1", ["agent"])[0] == "jsrun"
    assert fake.lsf(ways=LsfSettings(launcher="blaunch"), without=()).launch(found, "h1", ["agent"])[0] == "blaunch"
    none = ("blaunch", "jsrun")
    assert fake.lsf(without=none).launch(found, "h1", ["agent"]) == ("lsrun", "-m", "h1", "agent")
    with pytest.raises(Unsupported, match="neither blaunch, jsrun nor lsrun is on PATH"):
        fake.lsf(without=(*none, "lsrun")).launch(found, "h1", ["agent"])
    by_ssh = fake.lsf(ways=LsfSettings(launcher="ssh"), without=none).launch(found, "h1", ["agent", "--home", "/a b"])
    assert by_ssh[0] == "ssh"
    assert by_ssh[-2:] == ("h1", "exec agent --home '/a b'")


def test_what_it_can() -> None:
    overview = "--- Running Jobs: 1 (2 of 3 nodes, 66%) ---\n--- Eligible Jobs: 4 ---\n--- Blocked Jobs: 0 ---\n"
    lsid = "IBM Spectrum LSF 10.1.0.15, May 13 2025\n\nMy cluster name is alpha\n"
    told = (
        Fake(lsid=lsid, jobstat=overview, bslots="No backfill window exists at this time\n")
        .lsf(without=())
        .capabilities()
    )
    assert (told.kind, told.version, told.json, told.queues) == (
        "lsf",
        "IBM Spectrum LSF 10.1.0.15",
        True,
        ("fill", "killable"),
    )
    assert told.preemption == "killable: preempted, ended"
    assert told.limits["queue fill"] == "backfill; at most 60 min"
    assert told.limits["cluster"] == "alpha"
    assert told.limits["jobstat"] == "1 running, 4 eligible, 0 blocked jobs on 2 of 3 nodes"
    assert told.missing == ()
    assert told.commands["bslots"]


def test_what_a_relative_lacks_and_what_that_costs() -> None:
    fake = relative(
        lsid="openlava 4.0 project\nMy cluster name is openlava\n", lshosts=Completed("", "lshosts: usage\n", 255)
    )
    told = fake.lsf(without=("bslots", "jsrun", "jobstat", "blaunch", "lsrun", "bhist")).capabilities()
    assert not told.json
    said = "\n".join(told.missing)
    for part in (
        "read from bjobs -UF",
        "-Jd is not used",
        "SIGUSR2",
        "no bslots",
        "no bhist",
        "neither blaunch",
        "no GPUs",
    ):
        assert part in said
    assert not told.commands["bslots"]
    assert told.limits["queue killable"] == "preempted, ended"


def test_a_jobstat_that_fails_is_told_and_harms_nothing() -> None:
    fake = Fake(
        jobstat=Completed("", "compute-hm: Bad host name\n", 1),
        lsid="LSF 10.1\n",
        bslots="SLOTS RUNTIME\n4 UNLIMITED\n",
    )
    assert fake.lsf(without=()).capabilities().limits["jobstat"] == "jobstat: compute-hm: Bad host name"


RESERVED = (
    "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV \n"
    "batch1             ok                 -      4      0      0      0      0      0\n"
    "n1.x               ok                 -      4      0      0      0      0      0\n"
    "n2.x               closed_Full        -      4      4      0      0      0      4\n"
    "n3.x               ok                 -      4      1      0      1      0      0\n"
    "n4.x               closed_Adm         -      4      0      0      0      0      0\n"
)
WINDOWS = "SLOTS:    8\nRUNTIME:  1 hours 11 minutes 50 seconds\nHOSTS:    4*n1.x 4*n2.x 2*n3.x\n"


def test_what_idles_is_what_runs_nothing_also_where_it_is_kept() -> None:
    fake = Fake(bhosts=RESERVED)
    seen = fake.lsf().idle_nodes()
    assert (sorted(seen.names), seen.nodes) == (["n1", "n2"], 4)
    assert [argv[0] for argv in fake.asked] == ["bhosts"]


def test_without_bhosts_windows_say_what_idles() -> None:
    gone = BatchError("cannot run bhosts: No such file or directory", away=True)
    jobstat = "---- Running Jobs: 2 (4544 of 4604 nodes, 98.70%) ----\n"
    seen = Fake(bhosts=gone, bslots=WINDOWS, jobstat=jobstat).lsf(without=()).idle_nodes()
    assert (sorted(seen.names), seen.nodes) == (["n1", "n2"], 4604)
    none = Fake(bhosts=gone, bslots="No backfill window exists at this time\n").lsf().idle_nodes()
    assert (none.names, none.nodes) == (frozenset(), None)
    table = "SLOTS          RUNTIME\n42             25 hours 42 minutes 51 seconds\n"
    for bslots, told in ((table, "; bslots -l names no hosts$"), ("rubbish\n", "No such file or directory$")):
        with pytest.raises(BatchError, match=f"cannot run bhosts: .*{told}"):
            Fake(bhosts=gone, bslots=bslots).lsf().idle_nodes()


def test_what_has_said_what_idles_is_asked_for_good() -> None:
    """bhosts and bslots do not show the same hosts: a poll of the other one would be a change that never was."""
    down = Completed("", "lsid: Failed in an LSF library call\n", 255)
    lsf = Fake(bhosts=[RESERVED, down, RESERVED], bslots=WINDOWS).lsf()
    seen = lsf.idle_nodes()
    with pytest.raises(BatchError, match="bhosts: "):
        lsf.idle_nodes()
    assert lsf.idle_nodes() == seen
    fake = Fake(bhosts=[down, RESERVED], bslots=[WINDOWS, down, down, WINDOWS])
    lsf = fake.lsf()
    seen = lsf.idle_nodes()
    with pytest.raises(BatchError, match="bslots: "):
        lsf.idle_nodes()
    assert lsf.idle_nodes() == seen
    assert len(fake.of("bhosts")) == 1


def test_bslots_that_is_refused_does_not_say_that_nothing_idles() -> None:
    gone = BatchError("cannot run bhosts: No such file or directory", away=True)
    refused = Completed("", "bslots: illegal option -- l\nUsage: bslots\n", 255)
    with pytest.raises(BatchError, match="cannot run bhosts"):
        Fake(bhosts=gone, bslots=refused).lsf().idle_nodes()


def test_hosts_whose_slots_lshosts_does_not_say_this_time_have_what_they_had() -> None:
    bhosts = RESERVED.replace(
        "n1.x               ok                 -      4", "n1.x               ok                 -      -"
    )
    lshosts = "HOST_NAME type model cpuf ncpus maxmem maxswp server RESOURCES\nn1.x X86_64 P9 250.0 4 1G - Yes (CN)\n"
    lsf = Fake(bhosts=bhosts, lshosts=[lshosts, NOTHING]).lsf()
    seen = lsf.idle_nodes()
    assert (sorted(seen.names), seen.nodes) == (["n1", "n2"], 4)
    assert lsf.idle_nodes() == seen
    unlimited = "\n".join(line.replace("-      4 ", "-      - ") for line in RESERVED.splitlines())
    with pytest.raises(BatchError, match="bhosts: it shows no host that computes"):
        Fake(bhosts=unlimited, lshosts=NOTHING).lsf().idle_nodes()
