"""Commands of a batch system, run for real: what they started goes with them."""

import threading
from pathlib import Path

import pytest

from hpcdl.batch import command
from hpcdl.batch.command import Commands, run
from hpcdl.batch.system import BatchError
from tests.support.waiting import until

WRAPPER = 'sleep 300 & echo $! > "$0".new; mv "$0".new "$0"; wait'
"""A site's script around the real command, which it names in a file."""


def lives(pid: int) -> bool:
    """Whether it runs: one that has ended and is nobody's to wait for is gone as well."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_is_too_late_is_ended_with_what_it_started(tmp_path: Path) -> None:
    named = tmp_path / "pid"
    for seconds in (1.0, 4.0, 16.0):
        with pytest.raises(BatchError, match=f"has not answered within {seconds:g} s") as error:
            run(["sh", "-c", WRAPPER, str(named)], seconds)
        assert error.value.away
        if named.exists():
            break  # else it was ended before it had started anything: a slow machine
    pid = int(named.read_text())
    until(lambda: not lives(pid), "the end of what it started")


def test_the_end_ends_the_command_with_what_it_started(tmp_path: Path) -> None:
    named = tmp_path / "pid"
    commands, codes = Commands(), list[int]()
    asking = threading.Thread(target=lambda: codes.append(commands(["sh", "-c", WRAPPER, str(named)], 60.0).code))
    asking.start()
    until(named.exists, "what it starts")
    pid = int(named.read_text())
    assert lives(pid)
    commands.end()
    asking.join(60)
    assert codes == [-9]
    until(lambda: not lives(pid), "the end of what it started")
    with pytest.raises(BatchError, match="not run any more"):
        commands(["true"])


def test_what_prints_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LARGEST", 1 << 20)
    with pytest.raises(BatchError, match="has printed more than 1 MiB") as error:
        run(["yes", "x" * 1000], 600.0)
    assert not error.value.away
    done = run(["sh", "-c", "cat; echo nothing >&2; exit 3"], 60.0, stdin="y" * 500_000)
    assert (done.out, done.err, done.code) == ("y" * 500_000, "nothing\n", 3)
    assert run(["true"], 60.0, stdin="y" * 500_000).code == 0, "it need not read"


def test_variables_that_change_what_is_printed_are_left_out() -> None:
    names = "SQUEUE_FORMAT SQUEUE_STATES SINFO_SORT SACCT_FEDERATION SCANCEL_INTERACTIVE SLURM_TIME_FORMAT SBATCH_WAIT"
    names += " SBATCH_ARRAY_INX LSB_BJOBS_FORMAT LSB_DISPLAY_YEAR LSB_SHORT_HOSTLIST BSUB_QUIET"
    users = dict.fromkeys(names.split(), "1")
    kept = {"SLURM_CONF": "/x", "SBATCH_ACCOUNT": "a", "LSF_ENVDIR": "/y", "LSB_DEFAULTPROJECT": "p", "PATH": "/bin"}
    found = command.environment({**users, **kept, "LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"})
    assert found == {**kept, "LC_ALL": "C", "LANG": "de_DE.UTF-8", "HPCDL_BYPASS": "1"}
