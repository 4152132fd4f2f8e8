"""Which jobs a command line names: ids, ranges, names, globs, arrays, states and tags, in every verb."""

import json
import os
import pty
import select
import subprocess
from typing import Any

import click
import pytest

from hpcdl.cli.job_selection import Members, Selection, concerned_by, states_of, words_of
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, row
from tests.cli.test_process import SOON_S, argv, environment


def member(number: int, index: int, value: str, **changes: Any) -> dict[str, Any]:
    return row(number, name=f"sweep[{index},lr={value}]", array=5, array_index=index, sweep={"lr": value}, **changes)


ROWS = [
    row(1, name="train", state="DONE"),
    row(2, name="train", state="FAILED"),
    row(3, name="train-big", state="RUNNING", held=False),
    row(4, name="eval", held=True, tags=["paper"]),
    member(5, 1, "0.1", state="DONE"),
    member(6, 2, "0.1", state="RUNNING"),
    member(7, 1, "0.01", tags=["paper", "slow"]),
    member(8, 2, "0.01"),
]


def words(*values: str) -> tuple[Any, ...]:
    return words_of(click.Context(click.Command("cancel")), None, values)


def ids(*values: str, verb: str = "show", **more: Any) -> list[int]:
    return Selection(words(*values), **more).choose(ROWS, concerned_by(verb))


def test_numbers_are_ids() -> None:
    assert Selection(words("3-5", "12", "4,7")).ids == [3, 4, 5, 12, 7]
    assert words(" 3, 5 ", "3-[5-20:5]", "3[1]", "3_[2,4]") == (
        range(3, 4), range(5, 6), Members(3, ((5, 20, 5),), "3-[5-20:5]"), Members(3, ((1, 1, 1),), "3[1]"),
        Members(3, ((2, 2, 1), (4, 4, 1)), "3_[2,4]"),
    )  # fmt: skip
    assert words("7-9,3-[1-2],12") == (range(7, 10), Members(3, ((1, 2, 1),), "3-[1-2]"), range(12, 13))
    assert words("sweep[1,lr=0.1]", "a,b", "3d") == ("sweep[1,lr=0.1]", "a,b", "3d")
    for wrong in ("0", "", "3-1", "1-", "2026-11-24", "1-900000", "3-[5-2]", "1,,2"):
        with pytest.raises(click.BadParameter):
            words(wrong)


def test_a_name_is_the_last_of_that_name_and_what_is_not_finished() -> None:
    assert ids("train") == [2]
    assert ids("train", "eval") == [2, 4]
    assert ids("sweep") == [5, 6, 7, 8]
    assert ids("sweep[1,lr=0.01]") == [7], "brackets mean themselves"
    again = [*ROWS, row(9, name="train-big", state="DONE")]
    assert Selection(("train-big",)).choose(again) == [3, 9]


def test_brackets_of_an_arrays_own_name_are_part_of_it() -> None:
    brackets = [row(at, name=f"a[b[{at - 8}]", array=9, array_index=at - 8) for at in (9, 10)]
    rows = [row(1, name="a"), *brackets, row(11, name="a[1]")]
    assert [Selection((name,)).choose(rows) for name in ("a", "a[b", "a[b[2]", "a[1]")] == [[1], [9, 10], [10], [11]]


def test_globs_and_members() -> None:
    assert ids("train*") == [1, 2, 3]
    assert ids("sweep[?,lr=0.1]") == [5, 6]
    assert ids("7-[1]") == [5, 7], "any member names the array"
    assert ids("5-[2-9]", "3") == [6, 8, 3]
    assert ids(array=8) == [5, 6, 7, 8]


def test_filters_choose_among_what_is_named_or_all() -> None:
    assert ids("sweep", states=frozenset({"QUEUED"})) == [7, 8]
    assert ids(states=frozenset({"QUEUED"})) == [4, 7, 8]
    assert ids("1-3,99", states=frozenset({"FAILED", "DONE"})) == [1, 2]
    assert ids(tags=("paper",)) == [4, 7]
    assert ids("sweep", tags=("paper", "slow")) == [7]
    assert ids("sweep", states=frozenset({"FAILED"})) == []
    assert ids(every=True) == list(range(1, 9))


@pytest.mark.parametrize(
    "verb, some, every",
    [
        ("cancel", [6, 7, 8], [3, 4, 6, 7, 8]),
        ("hold", [7, 8], [4, 7, 8]),
        ("release", [5, 6, 7, 8], [4]),  # none of the sweep is held: the daemon says what becomes of that
        ("retry", [5, 6, 7, 8], [2]),
        ("exec", [6], [3, 6]),
        ("wait", [5, 6, 7, 8], list(range(1, 9))),
    ],
)
def test_a_verb_means_the_jobs_that_it_is_for(verb: str, some: list[int], every: list[int]) -> None:
    assert ids("sweep", verb=verb) == some
    assert ids(every=True, verb=verb) == every
    assert ids("1-3", verb=verb) == [1, 2, 3], "whoever names ids means these"


@pytest.mark.parametrize(
    "word, line",
    [
        ("sweeep", "no job's name is 'sweeep': did you mean sweep?"),
        ("trian", "no job's name is 'trian': did you mean train"),
        ("zzz*", "no job's name matches 'zzz*': hpcdl ls --all lists them"),
        ("99-[1]", "there is no job 99: hpcdl ls --all lists them"),
        ("3-[1]", "job 3 is in no array: hpcdl show 3"),
        ("5-[7-9]", "array 5 has no member 5-[7-9]: hpcdl ls --all --no-fold lists them"),
    ],
)
def test_a_word_that_names_nothing_is_a_line(word: str, line: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        ids(word)
    assert caught.value.message.startswith(line)


def test_states_are_checked() -> None:
    context = click.Context(click.Command("cancel"))
    assert states_of(context, None, ("queued,Running",)) == {"QUEUED", "RUNNING"}
    with pytest.raises(click.UsageError, match="jobs have no state 'WAITING': QUEUED, "):
        states_of(context, None, ("waiting",))


def test_a_submit_waits_for_the_jobs_of_a_name(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {each["id"]: dict(each) for each in ROWS}

    def after(*words: str) -> tuple[list[int], int]:
        number = hpcdl("submit", *words, "--", "true", "-q").out.split()[1]
        spec = fake.world.jobs[int(number)]["spec"]
        return spec["after"], len(spec["conditions"])

    assert after("--after", "sweep") == ([5, 6, 7, 8], 0)
    assert after("--after", "sweep[1,lr=0.01]", "--after", "3") == ([7, 3], 0)
    assert after("--after", "5-[2-9]") == ([6, 8], 0)
    assert after("--after-any", "train*") == ([], 3)
    done = hpcdl("submit", "--after", "sweeep", "--", "true")
    assert (done.code, done.out) == (2, "")
    assert "no job's name is 'sweeep': did you mean sweep?" in done.err
    assert hpcdl("submit", "--after", "5,sweep", "--", "true").code == 2
    fake.close()
    done = hpcdl("submit", "--after", "sweep", "--", "true")
    assert (done.code, done.out) == (1, "")
    assert "'sweep' is a name, and of its jobs the daemon is asked" in done.err


def test_waiting_for_none_is_a_line(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {each["id"]: dict(each) for each in ROWS}
    done = hpcdl("wait", "--state", "starting")
    assert (done.code, done.err) == (1, "hpcdl: there is no such job to wait for: hpcdl ls --all lists them\n")


def test_retry_failed_leaves_all_but_the_failed_of_the_states(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {1: row(1, state="FAILED"), 2: row(2, state="CANCELLED"), 3: row(3, state="DONE")}
    done = hpcdl("retry", "--failed", "--state", "done,cancelled")
    assert (done.code, done.out) == (2, "")
    assert "--failed is of jobs that FAILED: leave it out, or --state" in done.err
    assert hpcdl("retry", "--failed", "--state", "failed,cancelled", "-q").out == "1\n"


def test_every_verb_takes_names(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {each["id"]: dict(each) for each in ROWS}
    assert hpcdl("hold", "sweep", "-q").out == "7\n8\n"
    assert hpcdl("suspend", "sweep", "--state", "running", "-q").out == "6\n"
    assert hpcdl("annotate", "sweep[1,lr=0.01]", "note=a", "-q").out == "7\n"
    assert fake.requests[-1][2] == {"verb": "annotate", "ids": [7], "annotations": {"note": "a"}}
    assert hpcdl("release", "--tag", "paper", "-q").out == "4\n"
    assert hpcdl("retry", "train*", "-q").out == "2\n"
    assert (
        hpcdl("retry", "train*", "--failed").err == "hpcdl: there is no such job to retry: hpcdl ls --all lists them\n"
    )
    assert hpcdl("cancel", "5-[2]", "-q").out == "6\n8\n"
    assert hpcdl("cancel", "--all", "-q").out == "2\n3\n4\n7\n", "what the retry queued is among them"
    done = hpcdl("cancel", "--all", "--json")
    assert (done.code, done.value["jobs"], done.err) == (0, [], "")
    assert (hpcdl("wait", "sweep", "--json").code, hpcdl("wait", "train-*").code) == (130, 130)
    sent = len(fake.requests)
    assert hpcdl("cancel", "nothing").code == 2
    assert not any(method == "POST" for method, _, _ in fake.requests[sent:])


def test_several_jobs_are_shown_and_explained(jobs: FakeDaemon, hpcdl: Run) -> None:
    jobs.world.jobs[2]["name"] = "resnet-2"
    shown = hpcdl("show", "resnet*").out
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("job ")] == ["1", "2"]
    assert [each["id"] for each in hpcdl("show", "1-2", "--json").value["jobs"]] == [1, 2]
    assert hpcdl("show", "resnet", "--json").value["job"]["id"] == 1
    assert [each["job"] for each in hpcdl("why", "--all", "--json").value["jobs"]] == [1, 2, 3]
    assert hpcdl("why", "resnet-2", "--json").value["job"] == 2
    assert hpcdl("why", "1-2").out.count("job 1 holds n1:0") == 2
    done = hpcdl("why", "--state", "failed")
    assert (done.code, done.err) == (1, "hpcdl: there is no such job: hpcdl ls --all lists them\n")
    assert hpcdl("show").err.startswith(
        "hpcdl: say which jobs: hpcdl show 3-7 12, a NAME, --array ID, --tag TAG, --state STATE or --all"
    )


def test_one_job_by_its_name(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {each["id"]: dict(each) for each in ROWS}
    fake.world.events = [
        {"seq": 1, "at": 1.0, "stream": "job/3", "kind": "JobHeld", "version": 1, "body": {"job": 3}}
    ]  # fmt: skip
    assert hpcdl("events", "--job", "train-big", "-q").out == "1\n"
    done = hpcdl("events", "--job", "sweep")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("hpcdl: 'sweep' are jobs 5-8, and one is meant here: 8, say")
    assert hpcdl("events", "--job", "3-7").err.startswith("hpcdl: Invalid value for '--job': '3-7' are several jobs")
    assert hpcdl("exec", "trainn", "--", "true").err.startswith("hpcdl: no job's name is 'trainn': did you mean train")


def on_terminal(fake: FakeDaemon, answer: bytes, *words: str) -> tuple[int, str]:
    """The exit code, and what is printed on a terminal, of a command whose question is answered so."""
    ours, its = pty.openpty()
    process = subprocess.Popen(argv(*words), env=environment(fake.home, TERM="dumb"), stdin=its, stdout=its, stderr=its)
    os.close(its)
    text = b""
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    try:
        os.write(ours, answer)
        while poll.poll(SOON_S * 1000):
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            text += piece
        return process.wait(SOON_S), text.decode()
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def test_many_are_asked_about_on_a_terminal_only(fake: FakeDaemon, hpcdl: Run) -> None:
    fake.world.jobs = {number: row(number, name=f"job{number}", array=1, array_index=number) for number in range(1, 25)}
    code, text = on_terminal(fake, b"n\n", "cancel", "--all")
    assert (code, "cancel 24 jobs (1-24)? [y/N]" in text) == (1, True), text
    assert "nothing was done (--yes does not ask)" in text
    assert not any(method == "POST" for method, _, _ in fake.requests)
    code, text = on_terminal(fake, b"y\n", "hold", "--array", "3", "-q")
    assert (code, "hold 24 jobs (1-24)? [y/N]" in text) == (0, True), text
    code, text = on_terminal(fake, b"", "release", "1-24", "--yes", "-q")
    assert (code, "?" in text) == (0, False), text
    code, text = on_terminal(fake, b"", "cancel", "1-20", "-q")
    assert (code, "?" in text) == (0, False), text
    assert len(json.loads(hpcdl("cancel", "--all", "--json").out)["jobs"]) == 4, "nobody is asked in a pipe"
