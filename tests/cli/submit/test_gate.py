"""`--gate`: which commands are put behind the gate, and how."""

import pytest

from hpcdl.cli.submit.gate import behind_gate, runs_gate
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon


@pytest.mark.parametrize(
    ("command", "behind"),
    [
        ("python train.py --lr 1", "python -m hpcdl.trainer.gate train.py --lr 1"),
        ("/env/bin/python3.9 -u -W ignore -X dev train.py", "/env/bin/python3.9 -u -W ignore -X dev GATE train.py"),
        ("python -O -m pkg.train -m 3", "python -O GATE -m pkg.train -m 3"),
        ("python -mpkg x", "python GATE -m pkg x"),
        ("env A=1 B=2 python3 train.py", "env A=1 B=2 python3 GATE train.py"),
        ("python -m hpcdl.trainer.gate --import torch x.py", "python GATE --import torch x.py"),
        ("python train.py -c 3 -I", "python GATE train.py -c 3 -I"),
    ],
)
def test_the_interpreter_and_its_options_stay(command: str, behind: str) -> None:
    found = behind_gate(command.split())
    assert " ".join(found) == behind.replace("GATE", "-m hpcdl.trainer.gate")
    assert runs_gate(found)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("torchrun --nproc-per-node 2 x.py", "torchrun starts its ranks itself"),
        ("python -m torch.distributed.run x.py", "python -m torch.distributed.run starts its ranks itself"),
        ("bash train.sh", "bash is no Python interpreter"),
        ("./train.py", "./train.py is no Python interpreter"),
        ("env A=1", "env is no Python interpreter"),
        ("python -c pass", "names neither"),
        ("python -u", "names neither"),
        ("python -m", "names neither"),
        ("python -", "names neither"),
        ("python -Iu x.py", "does not look where hpcdl.trainer is"),
    ],
)
def test_what_is_no_python_script_is_refused_in_one_line(command: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^--gate.*" + why):
        behind_gate(command.split())


def test_submit_starts_a_script_behind_the_gate(fake: FakeDaemon, hpcdl: Run) -> None:
    assert hpcdl("submit", "--gate", "--", "python", "-m", "train").code == 0
    spec = fake.requests[-1][2]["jobs"][0]
    assert spec["command"] == ["python", "-m", "hpcdl.trainer.gate", "-m", "train"]
    assert (spec["name"], spec["gate"], spec["rescale"]) == ("train", True, "restart")
    refused = hpcdl("submit", "--gate", "--", "bash", "x.sh")
    assert refused.code == 2
    assert refused.err.count("\n") <= 2
