"""`hpcdl ls` on a terminal of 80 columns, folded arrays, metrics, and the best of a sweep."""

from typing import Any

import pytest

from hpcdl.cli.columns import JOBS, folded
from hpcdl.cli.job_table import noted_lines, summary
from hpcdl.cli.output import cells_of, shortened, table_lines
from hpcdl.core.model.units import short_band_text, short_seconds_text
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row


def member(number: int, index: int, lr: str, **changes: Any) -> dict[str, Any]:
    name = f"sweep[{index},lr={lr}]"
    return row(number, name=name, array=5, array_index=index, sweep={"lr": lr}, **changes)


def lines_of(*rows: dict[str, Any], width: int = 80) -> list[str]:
    columns = [JOBS.columns[name].column for name in JOBS.formats["default"]]
    *texts, notes = cells_of(columns, rows)
    return noted_lines(columns[:-1], texts, notes, width)


def test_a_note_stands_where_a_job_has_nothing_else_to_show() -> None:
    lines = lines_of(
        row(1, name="fit", state="RUNNING", gpus=1, step=79, total=3000, metric=0.25, eta_s=61.0),
        row(2, name="next", note="1st in queue, starts in 46s"),
        row(3, name="back", state="SUSPENDED", step=5, total=10, note="2nd in queue, resumes in 2m25s"),
        row(4, name="never", note="needs 8 GPUs; the largest of 3 nodes has 4, and none of them will ever be larger"),
    )
    assert lines[0].split() == ["ID", "NAME", "STATE", "GPUS", "ELAPSED", "PROGRESS", "METRIC", "ETA", "NOTE"]
    assert lines[1].split() == ["1", "fit", "RUNNING", "1/1", "-", "79/3000", "0.25", "1m01s"]
    begin = lines[2].index("1st")
    assert lines[2][begin:] == "1st in queue, starts in 46s"
    assert lines[0].index("ELAPSED") == begin, "from the first column that has nothing"
    assert lines[3] == " 3  back   SUSPENDED   0/1        -      5/10  2nd in queue, resumes in 2m25s"
    assert [line.strip() for line in lines[5:]] == [
        "needs 8 GPUs; the largest of 3 nodes has 4, and none of them will ever be",
        "larger",
    ], "whole, below its row"
    assert all(len(line) <= 80 for line in lines)


def test_an_end_that_follows_from_a_trial_has_its_band() -> None:
    (_, line) = lines_of(row(1, state="RUNNING", gpus=1, eta_s=210.0, eta_low_s=61.0, eta_high_s=370.0))
    assert "~3m30s (1-6m)" in line
    assert short_band_text(50.0, 40.0, 62.0) == "~50s (40s-1m)"
    assert short_band_text(7200.0, 7100.0, 7300.0) == "~2h00m (2h)"
    assert short_band_text(50.0, None, None) == "50s"


def test_many_ids_of_an_array_leave_names_their_room() -> None:
    rows = [
        {**row(1, name="resnet-sweep[1-9,lr=0.1..0.001]", state="DONE", started_at=1.0, finished_at=90_000.0),
         "id": "1-4,6-7,9-11,13-15,17,21-40", "jobs": 30},
        row(1204, name="convnext-finetune-imagenet", state="SUSPENDING", gpus=4, gpus_max=8, started_at=1.0,
            finished_at=90_000.0, step=123456, total=9999999, metric=1e-7, eta_s=1e6),
        {**row(5, name="short"), "id": "1000-1999", "jobs": 1000},
    ]  # fmt: skip
    title, first, second, third = lines_of(*rows)
    assert [line.split()[0] for line in (first, second, third)] == ["1…40", "1204", "1000-1999"]
    assert title.index("STATE") - title.index("NAME") - 2 == 14, "all that there is"
    assert max(map(len, (title, first, second, third))) <= 80
    assert lines_of(*rows, width=200)[1].split()[0] == "1-4,6-7,9-11,13-15,17,21-40"
    columns = [JOBS.columns[name].column for name in JOBS.formats["default"]]
    assert "1-4,6-7,9-11,13-15,17,21-40" in table_lines(columns, cells_of(columns, rows))[1], "in a pipe all"


@pytest.mark.parametrize("width", [40, 80, 132])
def test_it_fits_and_notes_are_whole(width: int) -> None:
    rows = [
        row(at, name="a-very-long-name-of-a-job" * at, state="SUSPENDING", gpus=4, gpus_max=8, started_at=1.0,
            finished_at=90_000.0, step=123456, total=9999999, metric=1e-7, eta_s=1e6, note=f"note {at}")
        for at in range(1, 4)
    ]  # fmt: skip
    lines = lines_of(*rows, width=width)
    assert "\n".join(lines).count("note ") == 3
    assert width < 80 or max(map(len, lines)) <= width, "what is narrower than the numbers is cut by nobody"


def test_long_progress_is_a_share() -> None:
    (_, line) = lines_of(row(1, step=1_234_567, total=3_000_000))
    assert "41%" in line.split()


def test_durations_are_short() -> None:
    assert [short_seconds_text(each) for each in (0.4, 59.9, 60, 685, 3600, 7500, 86_400, 273_600)] == [
        "0s", "59s", "1m00s", "11m25s", "1h00m", "2h05m", "1d00h", "3d04h",
    ]  # fmt: skip


def test_folded_members_say_how_many_they_are_and_what_differs() -> None:
    values = ["0.1", "0.03", "0.01"]
    rows = [
        member(5 + at, 1 + at % 2, values[at // 2], note=f"{at + 1}th in queue, starts in {at}s") for at in range(6)
    ]
    (line,) = folded(rows)
    assert (line["id"], line["name"]) == ("5-10", "sweep[1-2,lr=0.1..0.01]")
    assert JOBS.columns["state"].column.cell(line) == "6 QUEUED"
    assert line["note"] == "1th in queue, starts in 0s"
    (line,) = folded(rows[:4])
    assert line["name"] == "sweep[1-2,lr=0.1,0.03]"
    done = [{**each, "state": "DONE", "note": None} for each in rows[:2]]
    assert [(each["name"], each["state"]) for each in folded([*done, *rows[2:]])] == [
        ("sweep[lr=0.1]", "DONE"), ("sweep[1-2,lr=0.03,0.01]", "QUEUED"),
    ]  # fmt: skip
    alone = [{**each, "array_index": at} for at, each in enumerate(rows)]
    assert folded(alone)[0]["name"] == "sweep[lr=0.1..0.01]", "a sweep without --array has no indices"
    held = [{**each, "note": f"held: hpcdl release {each['id']}"} for each in rows]
    assert folded(held)[0]["note"] == "held: hpcdl release --array 5"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (["0", "1", "2", "3"], "wd=0..3"),
        (["3", "1", "0.5"], "wd=3..0.5"),
        (["2", "3", "0", "1"], "wd=0..3"),  # the first two members are running
        (["b", "c", "a"], "wd=b..a"),
    ],
)
def test_folded_numbers_are_those_from_the_smallest_to_the_largest(values: list[str], shown: str) -> None:
    rows = [{**member(7 + at, 1, "0.1"), "sweep": {"wd": value}} for at, value in enumerate(values)]
    assert shown in folded(rows)[0]["name"]


def test_a_summary_counts_by_state() -> None:
    rows = [row(1, state="DONE"), row(2), row(3, state="RUNNING", gpus=4), row(4)]
    assert summary(rows) == "4 jobs: 1 RUNNING, 2 QUEUED, 1 DONE; 4 GPUs held"
    assert summary(rows[1:2]) == "1 job: 1 QUEUED"


def test_the_best_of_a_sweep(fake: FakeDaemon, hpcdl: Run) -> None:
    rows = [
        row(1, name="alone", metric=0.001, state="RUNNING"),
        member(5, 1, "0.1", state="DONE", metric=0.5),
        member(6, 1, "0.01", state="RUNNING", metric=0.25, gpus=1),
        member(7, 1, "0.001"),
        row(8, name="other[1]", array=8, array_index=1),
    ]
    fake.world.jobs = {each["id"]: each for each in rows}
    assert hpcdl("ls", "--group", "sweep").out.splitlines() == [
        " ID  NAME   JOBS                         BEST  METRIC  VALUES",
        "5-7  sweep  1 RUNNING, 1 QUEUED, 1 DONE     6    0.25  lr=0.01",
        "  8  other  1 QUEUED                        -       -  -",
    ]
    assert hpcdl("ls", "--group", "sweep", "--sort", "-metric", "-q").out == "5\n"
    (sweep, other) = hpcdl("ls", "--group", "sweep", "--json").value["sweeps"]
    assert (sweep["id"], sweep["jobs"], sweep["best"]["id"]) == (5, 3, 6)
    assert sweep["states"] == {"DONE": 1, "RUNNING": 1, "QUEUED": 1}
    assert (other["name"], other["best"]) == ("other", None)
    assert hpcdl("ls", "--group", "sweep", "--columns", "id").code == 2
    assert hpcdl("ls", "gpus", "--group", "sweep").err.startswith("hpcdl: --group is for jobs")
    ids = [line.split()[0] for line in hpcdl("ls", "--all", "--sort", "metric").out.splitlines()[1:]]
    assert ids[:3] == ["1", "6", "5"], "members are not folded where their metric counts"
    for each in rows:
        each["metric"] = None
    for argv in (("ls", "--group", "sweep"), ("ls", "--sort", "-metric")):
        said = hpcdl(*argv).err
        assert said.startswith("hpcdl: no job reported a metric, which hpcdl.progress(step, metric=loss) does"), argv
    assert hpcdl("ls", "--sort", "metric", "--json").err == hpcdl("ls", "--sort", "id").err == ""
    hpcdl("ls", "--tag", "exp*")
    assert "tag=exp%2A" in fake.requests[-1][1]


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("train.py[lr=0.03,seed=1]", 24, "train.py[lr=0.03,seed=1]"),
        ("train.py[lr=0.03,seed=1]", 23, "train.…[lr=0.03,seed=1]"),
        ("train.py[lr=0.03,seed=1]", 20, "tra…[lr=0.03,seed=1]"),
        ("train.py[lr=0.03,seed=1]", 19, "train.py[lr=0.03,s…"),
        ("train.py on n1", 10, "train.py …"),
        ("n[1-4000]", 8, "n[1-400…"),
        ("ab[1]", 5, "ab[1]"),
        ("[1]", 3, "[1]"),
        ("[1234]", 4, "[12…"),
    ],
)
def test_a_name_that_is_cut_keeps_what_tells_it_from_others(name: str, width: int, shown: str) -> None:
    assert shortened(name, width) == shown


def test_a_run_that_diverged_is_last_in_both_orders_and_no_best(fake: FakeDaemon, hpcdl: Run) -> None:
    note = "loss is not finite since about step 51"
    rows = [
        member(5, 1, "10", state="DONE", not_finite_since=51, note=note),
        member(6, 2, "0.1", state="DONE", metric=0.5),
        member(7, 3, "0.01", state="DONE", metric=0.25),
        row(8, name="alone", state="DONE", not_finite_since=51, note=note),
    ]
    fake.world.jobs = {each["id"]: each for each in rows}
    for sort, order in (("metric", ["7", "6", "5", "8"]), ("-metric", ["6", "7", "5", "8"])):
        lines = [
            line.split() for line in hpcdl("ls", "--all", "--sort", sort, "--columns", "id,metric").out.split("\n")
        ]
        assert [line[0] for line in lines[1:-1]] == order
        assert [line[1] for line in lines[3:-1]] == ["nan", "nan"]
        answer = hpcdl("ls", "--group", "sweep", "--sort", sort, "--json").value
        assert answer["sweeps"][0]["best"]["id"] == int(order[0])
    fake.world.jobs = {5: rows[0]}
    assert hpcdl("ls", "--group", "sweep", "--json").value["sweeps"][0]["best"] is None
    assert note in "\n".join(lines_of(rows[0]))
    assert [each["id"] for each in folded(rows[:3])] == [5, "6-7"], "it is not folded with what is well"
