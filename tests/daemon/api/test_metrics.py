"""What the metrics count: the same as the account of the same events; and who may read them."""

import asyncio
import math
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause, Placement, Purpose, Share
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import GpuInfo, JobState, World
from hpcdl.daemon.api import metrics
from hpcdl.daemon.api.context import ApiContext, DaemonStatus
from hpcdl.daemon.api.http import ApiProblem
from hpcdl.daemon.api.metrics import (
    about_daemon,
    about_gpu_seconds,
    about_gpus,
    about_jobs,
    about_others,
    by_label,
    histogram,
    single,
    text_of,
    to_json,
)
from hpcdl.daemon.meter import SHARES, Durations, Meter
from hpcdl.report.account import account, story_of
from hpcdl.wire.messages import GpuLine
from tests.daemon.prometheus import Read, read
from tests.report.story import node, placed, set_three, submitted
from tests.support.seeds import seeds
from tests.support.stage import Stage, running


def recorded(stamped: Sequence[tuple[float, ev.Event]]) -> list[ev.Recorded]:
    return [ev.Recorded(seq, at, seq, event) for seq, (at, event) in enumerate(stamped, 1)]


def counted(records: Sequence[ev.Recorded], until: float, begin: float) -> tuple[dict[str, float], dict[str, float]]:
    """GPU-seconds as the meter and as the account have them; both may tell saves apart only afterwards."""
    meter = Meter(begin)
    meter.take(records)
    totals, told = meter.totals(until), account(story_of(records), since=begin, until=until).shares
    metered = {
        "idle": totals.gpu_s["idle"],
        "starting": totals.gpu_s["starting"],
        "lost": totals.lost_s,
        "useful": totals.gpu_s["training"] - totals.checkpoint_s - totals.lost_s,
        "saving": totals.gpu_s["saving"] + totals.checkpoint_s,
        "available": sum(totals.gpu_s.values()),
    }
    return metered, {name: getattr(told, name) for name in metered}


def test_the_papers_third_set() -> None:
    stamped = set_three()
    metered, told = counted(recorded(stamped), stamped[-1][0], stamped[0][0])
    assert metered == pytest.approx(told)


def test_checkpoints_and_what_a_failure_loses() -> None:
    stamped: list[tuple[float, ev.Event]] = [
        (0.0, node("n1", 4)),
        (0.0, submitted(1, "a")),
        (10.0, ev.StartRequested(1, 1, ("n1",), placed([0, 1]))),
        (12.0, ev.Started(1, 1, 1, "n1")),
        (12.0, ev.Attached(1, 1, 1, "n1")),
        (20.0, ev.TrainerReady(1, 1, 1, "n1")),
        (50.0, ev.Progressed(1, 1, 1, "n1", step=30)),
        (50.0, ev.Saved(1, 1, 1, "n1", step=30, seconds=4.0)),
        (70.0, ev.Progressed(1, 1, 1, "n1", step=50)),
        (71.0, ev.Exited(1, 1, 1, "n1", code=1, step=50)),
        (72.0, ev.GpusFreed(1, 1, 1, "n1")),
        (72.0, ev.IncarnationEnded(1, 1, Cause.USER_ERROR, reached=50, step=30, final=JobState.FAILED)),
        (72.0, ev.JobEnded(1, JobState.FAILED)),
    ]
    metered, told = counted(recorded(stamped), 100.0, 0.0)
    assert metered == pytest.approx(told)
    meter = Meter(0.0)
    meter.take(recorded(stamped))
    totals = meter.totals(100.0)
    assert totals.checkpoint_s == pytest.approx(8.0)
    assert totals.lost_s == pytest.approx(2 * 21.0)
    assert totals.finished == {"DONE": 0, "FAILED": 1, "CANCELLED": 0}
    assert totals.ended["user error"] == 1
    assert totals.submitted == 1


def test_several_nodes_come_go_and_are_lost() -> None:
    both = Placement((Share("n1", (0, 1)), Share("n2", (0, 1))))
    gone = GpuInfo(1, "GPU-n2-1", state="lost")
    meter = Meter(0.0)

    def at(seconds: float, event: ev.Event) -> dict[str, float]:
        meter.take([ev.Recorded(1, seconds, 1, event)])
        return dict(meter.totals(seconds).gpu_s)

    at(0.0, node("n1", 2))
    at(0.0, node("n2", 2))
    at(10.0, ev.StartRequested(1, 1, ("n1", "n2"), both))  # 4 idle for 10 s
    at(20.0, ev.TrainerReady(1, 1, 1, "n1"))  # 4 start for 10 s
    at(30.0, ev.RescaleRequested(1, 1, 2, ("n1",), ("n2",)))  # 4 train for 10 s
    at(35.0, ev.LeftBehind(1, 1, ("n2",)))  # 4 rescale for 5 s
    found = at(40.0, ev.Reformed(1, 1, 2, "n1"))  # 2 rescale, 2 idle for 5 s
    assert found == {"training": 40.0, "starting": 40.0, "saving": 0.0, "rescaling": 30.0, "idle": 50.0}
    at(40.0, ev.GpuChanged("n2", gone.index, "lost"))
    found = at(50.0, ev.NodeSilent("n2"))  # 2 train, 1 idle
    assert (found["training"], found["idle"]) == (60.0, 60.0)
    at(60.0, ev.NodeLost("n1", "gone"))  # 2 train
    found = at(100.0, ev.IncarnationEnded(1, 1, Cause.NODE_LOST))
    assert found == {"training": 80.0, "starting": 40.0, "saving": 0.0, "rescaling": 30.0, "idle": 60.0}
    assert meter.totals(200.0).gpu_s == found, "nothing is there any more"


def test_a_fault_of_the_meter_is_no_fault_of_the_daemon(caplog: pytest.LogCaptureFixture) -> None:
    meter = Meter(0.0)
    meter.take(cast(Any, [None]))
    assert "not counted" in caplog.text
    caplog.clear()


def test_it_goes_on_where_a_daemon_begins() -> None:
    """A meter of the world, and one that has seen all events since the first, count the same from here on."""
    stage = running(2, "12")
    first = Meter(0.0)
    first.take(stage.journal.records)
    seen, begin = len(stage.journal.records), stage.now
    before = first.totals(begin).gpu_s
    second = Meter.of(stage.world, begin)
    stage.send(cmd.Submit((JobSpec(("train",), "more", gpus_min=64, gpus_max=64),), "more"))
    stage.send(cmd.Hold(1))
    stage.run(200.0)
    for meter in (first, second):
        meter.take(stage.journal.records[seen:])
    after, since = first.totals(stage.now), second.totals(stage.now)
    assert {share: after.gpu_s[share] - before[share] for share in SHARES} == pytest.approx(dict(since.gpu_s))
    assert since.gpu_s["idle"] > 0
    assert since.suspends[Purpose.HOLD] == 1
    assert since.submitted == 1


def test_durations() -> None:
    found = Durations()
    for seconds in (0.0, 0.001, 0.0011, 0.3, 100.0):
        found.add(seconds)
    assert dict(found.buckets()) | {} == {
        0.001: 2, 0.002: 3, 0.005: 3, 0.01: 3, 0.02: 3, 0.05: 3, 0.1: 3, 0.2: 3, 0.5: 4, 1.0: 4, 2.0: 4, 5.0: 4,
        10.0: 4, 30.0: 4,
    }  # fmt: skip
    assert found.number == 5
    assert found.total_s == pytest.approx(100.3021)


ABOUT = DaemonStatus(1, "h", 1000.0, "1.0", "/home/jo/.hpcdl", ("marble",))


def families(world: World, lines: dict[str, dict[int, GpuLine]] | None = None) -> dict[str, Read]:
    totals = Meter(0.0).totals(0.0)
    return read(
        text_of(
            [
                *about_daemon(world, ABOUT, Durations()),
                *about_jobs(world, totals),
                *about_gpus(world, lines or {}),
                *about_gpu_seconds(totals),
                *about_others(world, 1),
            ]
        ).decode()
    )


def values(found: Read) -> dict[str, float]:
    return {",".join(value for _, value in labels): number for (_, labels), number in found.samples.items()}


def test_states_of_jobs_and_gpus() -> None:
    stage: Stage = running(3, "1")
    stage.send(cmd.Submit((JobSpec(("train",), "waits", gpus_min=64, gpus_max=64),), "waits"))
    stage.send(cmd.Avoid("n2", 1, 600.0, "test", False))
    stage.send(cmd.Drain("n3", None, True, "test"))
    lines = {"n1": {0: GpuLine(0, 50, 1024, 200.5), 1: GpuLine(1, None, None, None)}}
    found = families(stage.world, lines)
    assert values(found["hpcdl_gpus"]) == {
        "held": 2, "free": 1, "avoided": 1, "unhealthy": 0, "leaving": 2, "away": 0,
    }  # fmt: skip
    assert values(found["hpcdl_jobs"])["RUNNING"] == 1
    assert values(found["hpcdl_jobs"])["QUEUED"] == 1
    assert values(found["hpcdl_gpu_utilization_ratio"]) == {"0,n1": 0.5}
    assert values(found["hpcdl_gpu_memory_used_bytes"]) == {"0,n1": 1 << 30}
    assert values(found["hpcdl_gpu_power_watts"]) == {"0,n1": 200.5}
    assert values(found["hpcdl_agents_connected"]) == {"": 1}
    assert values(found["hpcdl_nodes"]) == {"connected": 3, "silent": 0, "lost": 0}


def test_the_number_of_lines_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = running(2, "12")
    lines = {"n1": {0: GpuLine(0, 50, 1024, 200.5)}}
    many = sum(len(found.samples) for found in families(stage.world, lines).values())
    monkeypatch.setattr(metrics, "MOST_GPUS", 3)
    found = families(stage.world, lines)
    assert "hpcdl_gpu_utilization_ratio" not in found
    assert values(found["hpcdl_gpus"])["held"] == 4
    few = sum(len(found.samples) for found in found.values())
    specs = tuple(JobSpec(("train",), f"job-{number}", gpus_min=64, gpus_max=64) for number in range(50))
    stage.send(cmd.Submit(specs, "many"))
    assert few < many
    assert sum(len(found.samples) for found in families(stage.world, lines).values()) == few


def test_no_job_user_or_command_is_named() -> None:
    stage = running(1, "1")
    spec = JobSpec(("secret-command",), "secret-name", user="secret-user", gpus_min=64, gpus_max=64)
    stage.send(cmd.Submit((spec,), "secret-request"))
    told = text_of([*about_jobs(stage.world, Meter(0.0).totals(0.0)), *about_gpus(stage.world, {})])
    assert b"secret" not in told


def test_forms_and_queries() -> None:
    stage = running(1, "1")

    class Loop:
        world, planning = stage.world, Durations()

        def now(self) -> float:
            return stage.now

        def call(self, function: Any) -> Any:
            from concurrent.futures import Future

            done: Future[Any] = Future()
            done.set_result(function(None))
            return done

    threads = set()

    def heartbeats() -> dict[str, Any]:
        threads.add(threading.current_thread().name)
        return {}

    hub = SimpleNamespace(nodes=lambda: ("n1",), heartbeats=heartbeats)
    api = ApiContext(cast(Any, Loop()), cast(Any, hub), cast(Any, None), stage.profiles, ABOUT)

    def ask(**query: str) -> Any:
        return asyncio.run(metrics.metrics(api, cast(Any, SimpleNamespace(query_params=query))))

    text = ask()
    assert text.media_type.startswith("text/plain; version=0.0.4")
    names = list(read(text.content.decode()))
    assert [row["name"] for row in ask(form="json")["metrics"] if row["samples"]] == names
    with pytest.raises(ApiProblem, match="form must be"):
        ask(form="xml")
    assert threads == {threading.current_thread().name}, "agents come and go in the loop's thread"


# --- the format -------------------------------------------------------------------------------------------------------

ANY = st.text(max_size=30) | st.sampled_from(
    ['"} 1\nevil_total 7', "\\", '\\"', "a\\nb", "\r\n# TYPE x counter", "\x00", "\u2028", "\ud800", "µ ✓"]
)


def test_what_it_looks_like() -> None:
    families = [
        single("a_ratio", "Of all.", 0.25),
        single("b_total", 'Two\nlines and a \\ and "quotes".', 3.0),
        by_label("c", "By state.", "state", {"ON": 2, 'o"ff\\\n': math.inf}),
        single("unknown", "Not known.", None),
    ]
    assert text_of(families).decode() == (
        "# HELP a_ratio Of all.\n# TYPE a_ratio gauge\na_ratio 0.25\n"
        '# HELP b_total Two\\nlines and a \\\\ and "quotes".\n# TYPE b_total counter\nb_total 3.0\n'
        '# HELP c By state.\n# TYPE c gauge\nc{state="ON"} 2.0\nc{state="o\\"ff\\\\\\n"} +Inf\n'
    )
    rows = to_json(families)
    assert [(row["name"], row["kind"]) for row in rows] == [
        ("a_ratio", "gauge"), ("b_total", "counter"), ("c", "gauge"), ("unknown", "gauge"),
    ]  # fmt: skip
    assert rows[2]["samples"] == [
        {"value": 2, "labels": {"state": "ON"}}, {"value": "+Inf", "labels": {"state": 'o"ff\\\n'}},
    ]  # fmt: skip
    assert rows[3]["samples"] == []


def test_a_histogram_is_cumulative_and_ends_at_infinity() -> None:
    durations = Durations()
    for seconds in (0.001, 0.7, 0.8, 100.0):
        durations.add(seconds)
    family = histogram("t_seconds", "Times.", durations)
    found = read(text_of([family]).decode())["t_seconds"].samples
    assert found["t_seconds_bucket", (("le", "0.001"),)] == 1
    assert found["t_seconds_bucket", (("le", "1"),)] == 3
    assert found["t_seconds_bucket", (("le", "+Inf"),)] == found["t_seconds_count", ()] == 4
    assert found["t_seconds_sum", ()] == pytest.approx(101.501)
    (row,) = to_json([family])
    assert row["samples"][0] == {"value": 1, "labels": {"le": "0.001"}, "suffix": "_bucket"}
    assert {each["suffix"] for each in row["samples"]} == {"_bucket", "_sum", "_count"}


@settings(max_examples=seeds(40))
@given(st.lists(st.tuples(ANY, st.floats()), max_size=4))
def test_whatever_a_label_says_stays_in_its_label(values: list[tuple[str, float]]) -> None:
    families = [by_label("x", "Any.", "node", dict(values)), single("last", "The end.", 1)]
    found = read(text_of(families).decode())
    assert list(found) == (["x", "last"] if values else ["last"])

    def shown(name: str) -> str:
        return name.encode("utf-8", "replace").decode()

    if len({shown(name) for name, _ in values}) == len(dict(values)):
        for name, value in dict(values).items():
            read_back = found["x"].samples["x", (("node", shown(name)),)]
            assert read_back == value or (math.isnan(read_back) and math.isnan(value))
