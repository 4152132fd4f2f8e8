"""Commands that a script calls about its own job, by the names that a member of an array has for it."""

import sys
from pathlib import Path

import pytest

from hpcdl.agent.steps.batch_commands import main
from hpcdl.agent.steps.layout import BadStep
from hpcdl.agent.steps.script import REQUEUE
from hpcdl.slurm.script_variables import script_variables


def member(folder: Path) -> dict[str, str]:
    """The variables of member 3 of array 40, which is job 42."""
    around = {"HPCDL_JOB": "42", "HPCDL_ARRAY_JOB": "40", "HPCDL_ARRAY_INDEX": "3", "HPCDL_SOCKET": f"{folder}/socket"}
    return {**around, **script_variables({}, around, ["n1"], 0), "PATH": str(folder)}


@pytest.mark.parametrize("name", ["42", "40_3"])
def test_a_member_of_an_array_requeues_itself_by_either_name(tmp_path: Path, name: str) -> None:
    assert main("scontrol", ["requeue", name], member(tmp_path)) == 0
    assert (tmp_path / REQUEUE).exists()


@pytest.mark.parametrize("line", ["scontrol requeue 40_4", "scontrol requeue 40", "scancel 40_4", "scancel 40"])
def test_other_commands_about_its_array_reach_no_batch_system(tmp_path: Path, line: str) -> None:
    name, *words = line.split()
    with pytest.raises(BadStep, match="is hpcdl's, which the batch system does not know"):
        main(name, words, member(tmp_path))
    assert not (tmp_path / REQUEUE).exists()


@pytest.mark.parametrize("line", ["scancel 42", "scancel -Q 40_3", "bkill 42"])
def test_a_job_that_cancels_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("runpy.run_module", lambda *args, **options: ran.append(sys.argv))
    name, *words = line.split()
    assert main(name, words, member(tmp_path)) == 0
    assert ran == [["hpcdl", "cancel", "42"]]


def test_another_id_is_the_batch_systems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("scancel", ["401"], member(tmp_path)) == 127
    assert capsys.readouterr().err == "scancel: command not found\n"
