"""The step gate of a background whose ranks train through a framework's own loop: all are held at one boundary."""

import time
from pathlib import Path

import pytest

from hpcdl.trainer.step_gate import COUNT
from tests.frameworks.trained import HERE, PYTHON
from tests.support.waiting import until
from tests.trainer.supervisor import supervisor
from tests.trainer.test_step_gate import boundaries, controller

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
EXEC = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize(
    ("argv", "env"),
    [
        ([*LAUNCHER, str(HERE / "hf_fit.py")], {}),
        ([str(HERE / "lightning_fit.py")], {"LIGHTNING_RANKS": "2"}),
    ],
    ids=["hf", "lightning"],
)
def test_ranks_are_held_together(tmp_path: Path, argv: list[str], env: dict[str, str]) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    with (
        supervisor(run, tmp_path / "ckpt", log=tmp_path / "log") as parent,
        controller(run) as agent,
    ):
        child = parent.start(["-c", EXEC, PYTHON, *argv, str(out)], HPCDL_SHARE="background", TEST_EPOCHS="40", **env)

        def waits() -> bool:
            parent.poll()
            assert child.poll() is None, (tmp_path / "log").read_text()[-3000:]
            return agent.page.waiting and len(set(boundaries(run))) == 1

        for duty in (0.5, 1.0):
            until(waits, "ranks at one boundary", 600)
            goal = agent.page.words[COUNT] + 3
            agent.duty = duty
            while agent.page.words[COUNT] < goal:
                parent.poll()
                assert child.poll() is None, "it has ended before it was held again"
                time.sleep(0.01)
            agent.duty = 0.0
        agent.duty = 1.0
        assert parent.end(child) == 0, (tmp_path / "log").read_text()[-3000:]
        assert out.exists()
