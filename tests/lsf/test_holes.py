"""bslots, bhosts, lshosts, bqueues and jobstat: what their recorded output means."""

from pathlib import Path

import pytest

from hpcdl.batch.adapter import Completed
from hpcdl.core.model.pilot import Hole
from hpcdl.lsf.cluster import (
    HostGpus,
    HostRow,
    LsfQueue,
    for_gaps,
    for_idle,
    not_preempted,
    parse_bhosts,
    parse_bqueues,
    parse_bqueues_long,
    parse_gpus,
    parse_lshosts,
)
from hpcdl.lsf.holes import (
    BackfillWindow,
    bslots_argv,
    from_idle,
    from_windows,
    no_window,
    parse_bslots,
    slots_of,
    usual,
)
from hpcdl.lsf.jobs import jobstat_text

RECORDINGS = Path(__file__).parents[1] / "recordings" / "lsf"


def recording(name: str) -> str:
    return (RECORDINGS / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    "name, windows",
    [
        ("bslots-two-windows", (BackfillWindow(42, 92571), BackfillWindow(27384, 4310))),
        ("bslots-one-window", (BackfillWindow(127764, 1375),)),
        ("bslots-unlimited", (BackfillWindow(2, None),)),
        (
            "bslots-long-two-windows",
            (BackfillWindow(42, None, (("h41n04", 42),)), BackfillWindow(84, 4310, (("h41n03", 42), ("h41n02", 42)))),
        ),
        ("bslots-none-exists", ()),
        ("bslots-none-meets", ()),
    ],
)
def test_windows(name: str, windows: tuple[BackfillWindow, ...]) -> None:
    assert parse_bslots(recording(name)) == windows


def test_windows_behind_a_wrapper() -> None:
    (window,) = parse_bslots(recording("bslots-long-behind-a-wrapper"))
    assert (window.slots, window.length_s, len(window.hosts)) == (70, 23820, 6)
    assert window.hosts[2] == ("m4071", 11)


def test_a_length_that_nobody_understands_is_no_window_without_an_end() -> None:
    with pytest.raises(ValueError, match="no length"):
        parse_bslots("SLOTS          RUNTIME\n42             3 fortnights\n")


@pytest.mark.parametrize("name", ["bslots-none-exists", "bslots-none-meets"])
@pytest.mark.parametrize("code", [0, 255])
def test_both_wordings_on_both_streams(name: str, code: int) -> None:
    assert no_window(Completed(recording(name), "", code))
    assert no_window(Completed("", recording(name), code))
    assert not no_window(Completed(recording("bslots-unlimited"), "", 0))


def test_the_select_string_is_one_argument_without_quotes() -> None:
    assert bslots_argv(long=True, select="CN") == ["bslots", "-l", "-Rselect[CN]"]
    assert bslots_argv(long=False, select="") == ["bslots"]


def test_hosts() -> None:
    assert parse_bhosts(recording("bhosts-delimiter")) == (HostRow("ip-11-21-111-198..ec2.internal", "ok", 4, 0, 0),)
    (host,) = parse_bhosts(recording("bhosts-one-host"))
    assert host == HostRow("b05u37g", "ok", 40, 0, 0)
    assert host.idle
    closed = parse_bhosts(
        "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV \n"
        "n1                 closed_Full        -      4      4      4      0      0      0\n"
        "n2                 ok                 -      -      0      0      0      0      2\n"
    )
    assert [each.idle for each in closed] == [False, False]
    assert closed[1].most is None
    assert closed[1].reserved == 2


def test_cpus_and_gpus_of_hosts() -> None:
    assert parse_lshosts(recording("lshosts")) == {"ip-11-21-111-198.ec2.internal": 4}
    assert parse_gpus(recording("lshosts-gpu-cut-model")) == {"kilenc": HostGpus(1, "teslav100_pcie_")}
    assert parse_gpus(recording("lshosts-gpu-vendor")) == {
        "hosta": HostGpus(3, "teskak20c"),
        "hostb": HostGpus(1, "teskak80c"),
        "hostc": HostGpus(1, "vega10_radeonin"),
    }
    assert parse_gpus(recording("bhosts-gpu")) == {"hosta": HostGpus(2, "teslav100_sxm2")}
    assert parse_gpus("No GPU on any host\n") == {}


def test_kinds_of_queues() -> None:
    background, killable = parse_bqueues_long(recording("bqueues-long-backfill-and-killable"))
    assert (background.backfill, background.interruptible_s, background.run_limit_s) == (True, 1.0, 600.0)
    assert background.requeues == (143,)
    assert not background.preemptable
    assert (killable.preemptable, killable.preempted_by, killable.ends) == (True, ("batch",), ("PREEMPT",))
    assert killable.rerunnable
    assert not killable.backfill
    assert killable.priority == 10
    assert killable.kind == "preempted by batch, ended; rerun when its host is lost"


def test_a_queue_with_named_hosts() -> None:
    (small,) = parse_bqueues_long(recording("bqueues-long-exclusive"))
    assert small.hosts[0] == "node1"
    assert len(small.hosts) == 12
    assert (small.run_limit_s, small.backfill, small.open) == (None, False, True)
    assert small.slots_max == 48


def test_the_preempting_queue_tells_which_one_is_preemptable() -> None:
    text = (
        "\nQUEUE: normal\n  -- everyday\n\nPARAMETERS/STATISTICS\n"
        "PRIO NICE     STATUS       MAX JL/U JL/P JL/H NJOBS  PEND  RUN  SSUSP USUSP  RSV\n"
        " 30  20    Open:Active        -    -    -    -    0     0     0     0     0    0\n\n"
        "DEFAULT LIMITS:\n RUNLIMIT                \n 5.0 min                 \n\n"
        "MAXIMUM LIMITS:\n CPULIMIT                 RUNLIMIT                \n 60.0 min                  90.0 min\n\n"
        "SCHEDULING PARAMETERS\n\nSCHEDULING POLICIES:  FAIRSHARE\nPREEMPTION = PREEMPTIVE[killable+2]\n"
        "USERS:  all users\nHOSTS:  all hosts used by the OpenLava system\n"
        "-------------------------------------------------------------------------------\n\n"
        "QUEUE: killable\n  -- yours while nobody wants it\n\nPARAMETERS/STATISTICS\n"
        "PRIO NICE     STATUS       MAX JL/U JL/P JL/H NJOBS  PEND  RUN  SSUSP USUSP  RSV\n"
        "  5  20  Closed:Inact_Adm     -    -    -    -    0     0     0     0     0    0\n\n"
        "USERS:  all users\nHOSTS:  g1 g2 \n"
    )
    normal, killable = parse_bqueues_long(text)
    assert (normal.preemptable, normal.run_limit_s, normal.hosts) == (False, 5400.0, ())
    assert (killable.preemptable, killable.preempted_by, killable.hosts) == (True, ("normal",), ("g1", "g2"))
    assert not killable.open


def test_the_table_of_queues() -> None:
    assert parse_bqueues(recording("bqueues-table")) == (
        LsfQueue("interactive", 400, True),
        LsfQueue("night", 40, False),
    )


def test_which_queue_takes_a_pilot() -> None:
    interruptible = LsfQueue("background", 1, backfill=True, interruptible_s=1.0)
    backfill = LsfQueue("fill", 5, backfill=True)
    assert (
        for_gaps((interruptible, LsfQueue("urgent", 90, backfill=True), backfill, LsfQueue("normal", 30))) == backfill
    )
    assert for_gaps((interruptible, LsfQueue("closed", 9, open=False, backfill=True))) == interruptible
    assert for_gaps((LsfQueue("normal"),)) is None
    assert for_gaps((backfill, LsfQueue("normal", 30), interruptible), ("normal", "background")) == interruptible
    assert for_gaps((backfill, LsfQueue("normal", 30)), ("normal",)) == LsfQueue("normal", 30)
    killable, low = LsfQueue("killable", 10, preemptable=True), LsfQueue("low", 1)
    assert for_idle((low, killable, LsfQueue("normal", 30)), ["n1"]) == killable
    assert for_idle((low, killable), ["n1"], ("low",)) == low
    theirs = LsfQueue("theirs", 2, preemptable=True, hosts=("n2",))
    assert for_idle((low, theirs), ["n1", "n2"]) == theirs
    group = LsfQueue("group", 2, preemptable=True, hosts=("some_group",))
    assert for_idle((low, group), ["n1"]) == group
    assert for_idle((LsfQueue("closed", open=False),), ["n1"]) is None


def test_what_jobstat_says_of_the_cluster() -> None:
    said = jobstat_text(recording("jobstat-with-usernames"))
    assert said == "2 running, 3 eligible, 1 blocked jobs on 4544 of 4604 nodes"
    assert jobstat_text(recording("jobstat-with-queues")).endswith("jobs on 1 of 15 nodes")
    with pytest.raises(ValueError, match="none of its three tables"):
        jobstat_text("compute-hm: Bad host name, host group name or cluster name\n")


SUMMIT = [HostRow("batch1", "ok", 42, 0, 0), HostRow("login1", "ok", 1, 0, 0)] + [
    HostRow(f"h41n0{number}.summit.example", "ok", 42, 0, 0) for number in range(1, 5)
]


def test_slots_are_not_nodes_and_launch_nodes_do_not_count() -> None:
    slots = slots_of(SUMMIT, {})
    assert slots == {f"h41n0{number}": 42 for number in range(1, 5)}
    assert slots_of(
        [HostRow("m1", "ok", 1, 0, 0), HostRow("n1", "ok", 40, 0, 0), HostRow("n2", "ok", 40, 0, 0)], {}
    ) == {
        "n1": 40,
        "n2": 40,
    }
    assert slots_of([HostRow("n1", "ok", None, 0, 0)], {"n1": 16}) == {"n1": 16}
    assert usual([4, 4, 42, 42, 42]) == 42
    assert usual([]) is None


def test_a_hole_for_each_window() -> None:
    slots = slots_of(SUMMIT, {})
    gpus = {name: HostGpus(6, "teslav100") for name in slots}
    fill = LsfQueue("fill", backfill=True, run_limit_s=7200)
    holes = from_windows(parse_bslots(recording("bslots-two-windows")), slots, gpus, fill, now=1000)
    assert [(hole.count, hole.until, hole.nodes, hole.gpus, hole.walltime_s, hole.queue) for hole in holes] == [
        (1, 93571, (), 6, 7200, "fill"),
        (652, 5310, (), 6, 7200, "fill"),
    ]
    named = from_windows(parse_bslots(recording("bslots-long-two-windows")), slots, gpus, None, now=1000)
    assert [(hole.nodes, hole.until, hole.queue) for hole in named] == [
        (("h41n04",), None, ""),
        (("h41n03", "h41n02"), 5310, ""),
    ]


def test_slots_that_make_no_whole_node_are_no_hole() -> None:
    slots = slots_of(SUMMIT, {})
    assert from_windows((BackfillWindow(41, 600),), slots, {}, None, now=0) == ()
    assert (
        from_windows(
            (BackfillWindow(41, 600, (("h41n01", 41),)), BackfillWindow(42, 600, (("batch1", 42),))), slots, {}, None, 0
        )
        == ()
    )


def test_nodes_of_different_kinds_are_different_holes() -> None:
    slots = {"n1": 4, "n2": 4, "n3": 4}
    gpus = {"n1": HostGpus(4, "a100"), "n2": HostGpus(0), "n3": HostGpus(4, "a100")}
    window = BackfillWindow(12, 600, (("n1", 4), ("n2", 4), ("n3", 4)))
    assert [(hole.nodes, hole.gpus) for hole in from_windows((window,), slots, gpus, None, 0)] == [
        (("n1", "n3"), 4),
        (("n2",), 0),
    ]
    (unnamed,) = from_windows((BackfillWindow(12, 600),), slots, gpus, None, 0)
    assert (unnamed.count, unnamed.gpus) == (3, None)


def test_idle_hosts_where_there_is_no_bslots() -> None:
    rows = [
        HostRow("n1", "ok", 4, 0, 0),
        HostRow("n2", "ok", 4, 1, 0),
        HostRow("n3", "closed_Adm", 4, 0, 0),
        HostRow("n4", "ok", 4, 0, 4),
        HostRow("n5", "ok", 4, 0, 0),
    ]
    slots = slots_of(rows, {})
    (hole,) = from_idle(rows, slots, {}, LsfQueue("killable", preemptable=True))
    assert hole == Hole("killable", 2, ("n1", "n5"), why="nobody says until when they idle: this LSF has no bslots")
    (hole,) = from_idle(rows, slots, {}, LsfQueue("small", hosts=("n1", "n2")))
    assert hole.nodes == ("n1",)
    (hole,) = from_idle(rows, slots, {}, LsfQueue("small", hosts=("some_group",)))
    assert hole.nodes == ("n1", "n5")


def test_what_the_queue_gives_one_job_limits_a_pilot() -> None:
    slots = {"n1": 4, "n2": 4, "n3": 4}
    rows = [HostRow(name, "ok", 4, 0, 0) for name in slots]
    queue = LsfQueue("small", hosts=("n1.x", "n2.x", "n3.x"), slots_max=9)
    (hole,) = from_windows((BackfillWindow(12, 600),), slots, {}, queue, 0)
    assert (hole.count, hole.nodes_max) == (3, 2)
    assert [each.nodes_max for each in from_idle(rows, slots, {}, queue)] == [2]
    tiny = LsfQueue("tiny", slots_max=3)
    assert from_windows((BackfillWindow(12, 600),), slots, {}, tiny, 0) == ()
    assert from_idle(rows, slots, {}, tiny) == ()
    text = "QUEUE: q\nPRIO NICE STATUS MAX\n 1 0 Open:Active -\n"
    text += " CPULIMIT                 TASKLIMIT\n 5.0 min of a      1 4 48\n"
    assert parse_bqueues_long(text)[0].slots_max == 48


def test_hosts_that_the_queue_may_not_use_are_in_no_hole() -> None:
    slots = {"n1": 4, "n2": 4}
    window = BackfillWindow(8, 600, (("n1.x", 4), ("n2.x", 4)))
    (hole,) = from_windows((window,), slots, {}, LsfQueue("theirs", hosts=("n2.x",)), 0)
    assert hole.nodes == ("n2",)
    (hole,) = from_windows((window,), slots, {}, LsfQueue("group", hosts=("some_group", "n2.x")), 0)
    assert hole.nodes == ("n1", "n2")


def test_a_window_of_interruptible_backfill_says_so() -> None:
    queue = LsfQueue("background", backfill=True, interruptible_s=1.0)
    (hole,) = from_windows((BackfillWindow(4, 600),), {"n1": 4}, {}, queue, 0)
    assert "whatever walltime was asked" in hole.why


def test_which_queues_are_preempted_and_why_others_are_not() -> None:
    def block(name: str, priority: int, policies: str, preemption: str = "", status: str = "Open:Active") -> str:
        stats = f"PRIO NICE STATUS MAX\n {priority} 0 {status} -\n"
        return f"QUEUE: {name}\n{stats}SCHEDULING POLICIES:  {policies}\n{preemption}\n"

    def whys(text: str) -> dict[str, str]:
        queues = parse_bqueues_long(text)
        return {queue.name: not_preempted(queue, queues) for queue in queues}

    no, low = "bqueues -l does not call it PREEMPTABLE", "it is PREEMPTABLE, but no open queue is more urgent"
    named = block("urgent", 90, "PREEMPTIVE", "PREEMPTION:  PREEMPTIVE[killable+1]") + block("killable", 10, "")
    assert whys(named + block("normal", 30, "BACKFILL")) == {"urgent": no, "killable": "", "normal": no}
    alone = block("killable", 10, "PREEMPTABLE", "PREEMPTION = PREEMPTABLE[batch]")
    assert whys(alone + block("normal", 30, "")) == {"killable": low, "normal": no}, "batch is not there"
    assert whys(alone + block("batch", 30, ""))["killable"] == ""
    assert whys(alone + block("batch", 30, "", "", "Closed:Active"))["killable"] == low
    over_all = block("urgent", 90, "PREEMPTIVE") + block("normal", 30, "") + block("first", 95, "")
    assert whys(over_all) == {"urgent": no, "normal": "", "first": no}
    assert whys(block("low", 1, "PREEMPTABLE"))["low"] == low
