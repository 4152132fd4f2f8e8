"""What all of Slurm's output shares: lists of hosts, times, durations, numbers of JSON, complaints."""

import time
from pathlib import Path

import pytest

from hpcdl.batch.system import BatchError
from hpcdl.core.model.units import expand_nodes, fold_nodes
from hpcdl.slurm.text import (
    ExpandedLists,
    columns,
    complaint,
    duration,
    entries,
    expand,
    is_away,
    moment,
    number,
    pairs,
    rows,
    words,
)

RECORDINGS = Path(__file__).parents[1] / "recordings" / "slurm"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],gpu[01-04]", ["n1", "n2", "n3", "n7", "gpu01", "gpu02", "gpu03", "gpu04"]),
        ("a[1-2]b[3-4]", ["a1b3", "a1b4", "a2b3", "a2b4"]),
        ("r[08-11]-x", ["r08-x", "r09-x", "r10-x", "r11-x"]),
        ("n[9,098-101]", ["n9", "n098", "n099", "n100", "n101"]),
        ("login,n[1]", ["login", "n1"]),
        (" n1 , n2 ", ["n1", "n2"]),
        ("rack[1-2]-[a,b]", ["rack1-a", "rack1-b", "rack2-a", "rack2-b"]),
        ("", []),
        ("(null)", []),
        ("n[1-", ["n[1-"]),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


def test_what_is_expanded_folds_again() -> None:
    names = expand("g[001-128,200],n7")
    assert sorted(expand(fold_nodes(names))) == sorted(names)
    assert len(expand("n[0001-4608]")) == 4608


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:00", 1800),
        ("1:02:03", 3723),
        ("2-00:00:00", 172800),
        ("1-12", 129600),
        ("1-00:30", 88200),
        ("UNLIMITED", None),
        ("infinite", None),
        ("Partition_Limit", None),
        ("NOT_SET", None),
        ("soon", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


def test_moments() -> None:
    assert moment("1795326699") == 1795326699.0
    for nothing in ("N/A", "Unknown", "None", "(null)", "", "0", "tomorrow", "2026-13-40T00:00:00"):
        assert moment(nothing) is None, nothing
    local = moment("2026-11-20T12:26:34")  # where SLURM_TIME_FORMAT is not heeded
    assert local is not None
    assert time.localtime(local)[:6] == (2026, 11, 20, 12, 26, 34)


def test_numbers_and_states_of_json_in_all_shapes() -> None:
    assert number(5) == 5.0
    assert number({"set": True, "infinite": False, "number": 7}) == 7.0
    assert number({"set": False, "infinite": False, "number": 0}) is None
    assert number({"set": True, "infinite": True, "number": 0}) is None
    nothings: list[object] = [None, "7", True, [], {}]
    for nothing in nothings:
        assert number(nothing) is None, nothing
    assert words("running") == ("RUNNING",)
    assert words(["IDLE", "PLANNED"]) == ("IDLE", "PLANNED")
    assert words(None) == ()


def test_columns_are_asked_for_by_name_without_a_width() -> None:
    assert columns(("JobID", "Comment")) == "JobID:|,Comment:|"
    fields = ("JobID", "State", "Comment", "JobID")
    head = "of a site's own | script\nJOBID|STATE|COMMENT|JOBID|\n"
    text = head + "1|RUNNING|fold 1 | 2\n3|1|\n\n2|PENDING||2|\n"
    assert list(rows(text, fields)) == [["1", "RUNNING", "fold 1 | 2\n3"], ["2", "PENDING", ""]]
    assert list(rows(head, fields)) == []
    for wrong in ("", "1|RUNNING||1|\n", text + "slurm: a warning\n", text[:-2], text[:-5]):
        with pytest.raises(BatchError):
            list(rows(wrong, fields))


def test_free_text_does_not_override_what_comes_first() -> None:
    said = pairs("PartitionName=gpu State=UP   MaxTime=1-00:00:00 Reason=broken State=DOWN [root@2026]")
    assert said["State"] == "UP"
    assert said["MaxTime"] == "1-00:00:00"


@pytest.mark.parametrize("name", ["controller-away", "sbatch-away", "scancel-away", "scontrol-away"])
def test_an_absent_controller_is_told_from_a_refusal(name: str) -> None:
    said = (RECORDINGS / f"22.05-error-{name}.txt").read_text()
    assert is_away(said)
    assert complaint(said).endswith("Unable to contact slurm controller (connect failure)")


def test_complaints_are_one_line_in_the_commands_own_words() -> None:
    said = (RECORDINGS / "22.05-error-partition.txt").read_text()
    assert complaint(said) == "Batch job submission failed: Invalid partition name specified"
    assert not is_away(said)
    assert complaint((RECORDINGS / "22.05-error-option.txt").read_text()) == "unrecognized option '--bogus'"
    assert complaint("") == "it gives no reason"


@pytest.mark.parametrize("what", ["nodes", "jobs"])
def test_an_empty_list_beside_an_error_is_no_answer(what: str) -> None:
    with pytest.raises(BatchError, match="Unspecified error") as raised:
        entries((RECORDINGS / f"22.05-controller-away-{what}.json").read_text(), what)
    assert raised.value.away


def test_json_of_something_else_is_a_value_error() -> None:
    for text in ("", "[]", "sinfo: error", "{}", '{"nodes": 3}'):
        with pytest.raises(ValueError):
            entries(text, "nodes", "sinfo")
    unknown = '{"errors": [{"error": "Invalid job id specified", "error_number": 2017}], "jobs": []}'
    assert entries(unknown, "jobs") == ("jobs", [])


def test_a_year_of_lists_holds_no_more_hosts_than_a_few_polls() -> None:
    lists = ExpandedLists(1000)
    usual = "n[1-400]"
    for first in range(1, 2000):
        names = lists(f"n[{first}-{first + first % 300}]")
        assert names == expand_nodes(f"n[{first}-{first + first % 300}]")
        assert lists(usual) is lists(usual)
        assert len(lists) <= 2 * (1000 + 400)
    assert lists("(null)") == ()
