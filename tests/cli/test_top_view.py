"""What `hpcdl top` draws, from values alone."""

from dataclasses import replace
from typing import Any

import pytest

from hpcdl.cli.output import width_of
from hpcdl.cli.show import why_lines
from hpcdl.cli.top import HELP, KEYS, Answers, LogTail, TopView, draw, ids_of, keys
from tests.cli.fake import row

STATUS = {
    "daemon": {"pid": 7, "host": "n1", "since_s": 61.0, "policy": "adaptive", "objective": "jct", "stopping": False},
    "jobs": {"RUNNING": 2, "QUEUED": 1},
}


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    base = {"index": index, "state": "ok", "holder": None, "util": 0.0, "used_mib": 0, "memory_mib": 16384,
            "power_w": 40.0}  # fmt: skip
    return base | changes


def nodes(number: int = 1) -> list[dict[str, Any]]:
    held = gpu(0, holder={"job": 1, "incarnation": 2}, util=50.0, used_mib=8192, power_w=200.0)
    return [{"name": f"n{n}", "connected": True, "gpus": [held, gpu(1)]} for n in range(1, number + 1)]


JOBS = [
    row(1, name="b", state="RUNNING", gpus=1, step=50, total=100, saved_step=40, eta_s=60.0),
    row(2, name="a", state="RUNNING", gpus=1, step=7),
    row(3, name="wait", reason="needs 4 GPUs, 1 free", note="1st in queue, starts in 47s"),
]
VIEW = TopView(Answers(STATUS, nodes(), JOBS))


def text(view: TopView, width: int = 80, height: int | None = 24) -> list[str]:
    return [line for line, _ in draw(view, width, height)]


def test_the_whole_of_it() -> None:
    assert text(VIEW)[:11] == [
        "hpcdl on n1 (pid 7), up 1 min 01 s  adaptive for jct",
        "GPUs  1 held, 1 free of 2; load now 25 %, 50 % on those held; 240 W",
        "jobs  2 RUNNING, 1 QUEUED",
        "saved  1 of 2 running jobs; 17 steps not saved yet",
        "n1:0 ##...  50%  8.0/16G 200W 1         n1:1 .....   0%  0.0/16G  40W -",
        "",
        "ID  NAME  STATE    GPUS  DONE    ETA  NOTE",
        " 1  b     RUNNING   1/1  50 %  1m00s",
        " 2  a     RUNNING   1/1     -      -",
        " 3  wait  QUEUED    0/1  1st in queue, starts in 47s",
        "",
    ]
    assert text(VIEW)[-1] == f"[id]  {KEYS}"


def test_a_wide_terminal_has_the_columns_of_ls_and_a_background_beside_its_foreground() -> None:
    shared = gpu(0, holder={"job": 1, "incarnation": 2}, background={"job": 9, "incarnation": 1})
    status = STATUS | {"jobs": {"DONE": 4, "QUEUED": 1, "RUNNING": 2, "FAILED": 1}}
    jobs = [row(1, name="b", state="RUNNING", gpus=1, step=50, total=100, metric=0.5, eta_s=60.0)]
    view = TopView(Answers(status, [{"name": "n1", "connected": True, "gpus": [shared]}], jobs))
    lines = text(view, 200)
    assert "jobs  2 RUNNING, 1 QUEUED, 4 DONE, 1 FAILED" in lines
    assert any(line.endswith(" 1+9") for line in lines)
    assert "ID  NAME  STATE    GPUS  ELAPSED  PROGRESS  METRIC    ETA" in lines
    assert any("50/100     0.5  1m00s" in line for line in lines)


def test_a_bar_is_short_where_else_a_background_would_be_cut() -> None:
    shared = gpu(
        0, holder={"job": 10_412, "incarnation": 2}, background={"job": 10_419, "incarnation": 1}, power_w=None
    )
    seen = {"name": "gpu01", "connected": True, "gpus": [shared, gpu(1, power_w=None)]}
    (line,) = (line for line in text(TopView(Answers(STATUS, [seen]))) if line.startswith("gpu01:0"))
    assert "gpu01:0 .....   0%  0.0/16G 10412+10419 gpu01:1" in line


def test_a_long_name_leaves_room_for_what_another_job_waits_for() -> None:
    jobs = [row(1, name="pretraining-" * 9, state="RUNNING", gpus=1, step=50, total=100, eta_s=60.0), JOBS[2]]
    lines = text(TopView(Answers(STATUS, nodes(), jobs)))
    assert any(line.endswith("…  RUNNING   1/1  50 %  1m00s") for line in lines)
    assert any(line.endswith(" QUEUED    0/1  1st in queue, starts in 47s") for line in lines)


@pytest.mark.parametrize("width", [20, 37, 80, 200])
@pytest.mark.parametrize("height", [5, 10, 24, 60])
@pytest.mark.parametrize("many", [1, 40])
def test_it_fits_every_terminal(width: int, height: int, many: int) -> None:
    jobs = [row(n, name="名前\x1b[31m" * 9, note="r" * 300) for n in range(1, 200)]
    for view in (
        TopView(Answers(STATUS, nodes(many), jobs), chosen=120),
        TopView(Answers()),
        replace(VIEW, note="away"),
    ):
        lines = text(view, width, height)
        assert len(lines) == height
        assert all(width_of(line) <= width for line in lines)
        assert not any("\x1b" in line for line in lines)


def test_who_is_chosen_is_in_sight() -> None:
    jobs = [row(n) for n in range(1, 200)]
    for chosen in (1, 100, 199):
        view = TopView(Answers(STATUS, nodes(), jobs), chosen=chosen)
        (line,) = [line for line, style in draw(view, 80, 24) if style == "chosen"]
        assert line.split()[0] == str(chosen)


def test_order_and_selection() -> None:
    assert [each["id"] for each in replace(VIEW, sort="name").jobs()] == [2, 1, 3]
    assert [each["id"] for each in replace(VIEW, sort="name", reverse=True).jobs()] == [3, 1, 2]
    assert VIEW.near(1) == 1, "nobody was chosen"
    by_name = replace(VIEW, sort="name", chosen=1)
    assert (by_name.near(1), by_name.near(-1), by_name.near(9)) == (3, 2, 3)
    assert TopView(Answers()).near(1) is None


def test_gpus_that_cannot_be_used_and_those_without_room() -> None:
    gpus = [gpu(0, state="lost"), gpu(1, avoided_until=9.0), gpu(2, util=None)]
    bad = [{"name": "n1", "connected": True, "gpus": gpus}]
    lines = text(TopView(Answers(STATUS, bad, ())), 40)
    assert lines[1].startswith("GPUs  0 held, 1 free of 3, 2 not usable")
    gone = [{**bad[0], "connected": False}]
    assert text(TopView(Answers(STATUS, gone, ())), 80)[1].startswith("GPUs  0 held, 0 free of 3, 2 not usable, 1 away")
    assert "!lost!" in lines[4]
    assert "!excluded!" in lines[5]
    assert "?????   - " in lines[6]
    (wide,) = (line for line in text(TopView(Answers(STATUS, bad[:1], ())), 50) if "0:" not in line and "n1:2" in line)
    assert "??????????" in wide
    crowded = text(TopView(Answers(STATUS, nodes(100), JOBS)))
    assert any(line.startswith("… ") and line.endswith(" more GPUs: hpcdl ls gpus") for line in crowded)
    assert any(line.startswith(" 3  wait") for line in crowded)


def test_a_snapshot_has_everything_and_no_keys() -> None:
    jobs = [row(n) for n in range(1, 200)]
    lines = text(TopView(Answers(STATUS, nodes(100), jobs)), 80, None)
    assert len(lines) == 4 + 100 + 1 + 200
    assert not any("quit" in line for line in lines)
    assert text(TopView(Answers(STATUS, (), ())), 80, None)[-1] == "no unfinished jobs: hpcdl submit -- COMMAND"


def test_why_in_place_of_the_table_and_trouble_in_place_of_the_keys() -> None:
    answer = {
        "job": 3,
        "state": "QUEUED",
        "reason": "needs 4 GPUs",
        "details": ["x" * 100],
        "forecast": {"text": "late"},
    }
    view = replace(VIEW, why=why_lines(answer), paused=True, note="")
    lines = text(view)
    assert "job 3  QUEUED: needs 4 GPUs" in lines
    assert "late" in lines
    assert not any(line.startswith("ID  NAME") for line in lines)
    assert lines[-1].startswith("[id, paused]")
    assert text(replace(VIEW, note="no daemon is running"))[-1] == "no daemon is running"


MEMBERS = [
    row(number, name=f"sweep[lr={number / 10}]", array=5, array_index=number - 5, sweep={"lr": str(number / 10)})
    for number in range(5, 15)
]


def test_an_array_is_one_line_until_it_is_unfolded() -> None:
    jobs = [*JOBS, *MEMBERS, row(15, name="last")]
    view = TopView(Answers(STATUS, nodes(), jobs), chosen=3)
    assert [each["id"] for each in view.jobs()] == [1, 2, 3, "5-14", 15]
    assert (view.near(1), replace(view, chosen=5).near(1), replace(view, chosen=9).near(-1)) == (5, 15, 3)
    (line,) = (line for line, style in draw(replace(view, chosen=9), 80, 24) if style == "chosen")
    assert line.lstrip().startswith("5-14  sweep[lr=0.5..1.4]")
    assert ids_of(view.jobs()[3]) == list(range(5, 15))
    wide = replace(view, expanded=frozenset({5}), chosen=5)
    assert [each["id"] for each in wide.jobs()] == [1, 2, 3, *range(5, 16)]
    assert wide.near(1) == 6


def test_a_question_and_what_became_of_it_are_in_the_last_line() -> None:
    assert text(replace(VIEW, question="cancel job 1? y or n", note="x", told="y"))[-1] == "cancel job 1? y or n"
    assert text(replace(VIEW, told="1: CANCELLED now"))[-1] == "1: CANCELLED now"
    assert len(KEYS) + len("[id]  ") <= 80
    assert max(map(len, HELP)) <= 80
    assert len(HELP) + 8 <= 24, "it is shown below the GPUs"


@pytest.mark.parametrize("width, height", [(80, 24), (20, 5), (40, 3)])
def test_the_output_of_a_job(width: int, height: int) -> None:
    lines = [f"step {number} \x1b[31m" + "字" * 100 for number in range(100)]
    log = LogTail(1, "job 1, attempt 1 on n1", lines)
    drawn = text(replace(VIEW, log=log), width, height)
    assert len(drawn) == height
    assert max(map(width_of, drawn)) <= width
    assert not any("\x1b" in line for line in drawn)
    assert drawn[-2].startswith("step 99 ")
    assert text(replace(VIEW, log=replace(log, up=9)), width, height)[-2].startswith("step 90 ")
    assert text(replace(VIEW, log=LogTail(1, "job 1")))[-1].startswith("l back")


def test_keys() -> None:
    assert keys(b"\x1b[5~\x1b[6~\x1b[Hx") == ["page up", "page down", "home", "x"]
    assert keys(b"jq") == ["j", "q"]
    assert keys(b"\x1b[A\x1bOBs") == ["up", "down", "s"]
    assert keys(b"\x1b[15~q") == [], "a key that means nothing here"
