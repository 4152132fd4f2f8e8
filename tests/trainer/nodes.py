"""Several nodes for tests: a small supervisor each, and what the daemon would tell them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import until
from tests.trainer.preloaded import PLAIN, Preloaded
from tests.trainer.supervisor import EXAMPLES, ROOT, Supervisor, supervisor

EXAMPLE = EXAMPLES / "elastic_train.py"
TELLING = Path(__file__).with_name("telling.py")


class Nodes:
    """By name; all trainers write into `log`, and use the checkpoint folder `checkpoints`."""

    def __init__(self, folder: Path, stack: ExitStack, origin: Preloaded) -> None:
        self._folder = folder
        self._stack = stack
        self._origin = origin
        self.checkpoints = folder / "checkpoints"
        self.log = folder / "log"
        self.number = 0
        self.by_name: dict[str, Supervisor] = {}
        self.ranks: dict[str, int] = {}

    def start(self, name: str, argv: Sequence[str], ranks: int = 1, script: Path = EXAMPLE, **env: str) -> None:
        made = supervisor(self._folder / name, self.checkpoints, log=self.log, origin=self._origin)
        node = self._stack.enter_context(made)
        self.by_name[name], self.ranks[name] = node, ranks
        environ = {"HPCDL_RESCALE": "in-process", "HPCDL_NODE": name, "HPCDL_ADDRESS": "127.0.0.1"}
        environ |= {"HPCDL_MEMBERSHIP": "0", "HPCDL_TAG": f"test:7:1:{name}", "TEST_PATIENCE_S": "8"}
        command: list[str | Path] = [TELLING, script, *argv]
        if ranks > 1:
            command = ["-m", "hpcdl.trainer.ranks", str(ranks), "--", sys.executable, *command]
        node.start(command, 1, **(environ | env))

    def __getitem__(self, name: str) -> Supervisor:
        return self.by_name[name]

    def child(self, name: str) -> subprocess.Popen[str]:
        return self[name].children[0]

    def poll(self) -> None:
        for node in self.by_name.values():
            node.poll()

    def wait(self, name: str, kind: str, count: int = 1, **keys: Any) -> dict[str, Any]:
        """As Supervisor.wait, while the other nodes are heard, too."""

        def found() -> list[dict[str, Any]]:
            self.poll()
            packets = self[name].packets
            same = [each for each in packets if each["type"] == kind and keys.items() <= each.items()]
            return same[count - 1 : count]

        return until(found, f"{kind} {keys} of {name}; it said {self[name].kinds()[-20:]}; {self.tail()}")[0]

    def tail(self) -> str:
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    def ask(self, *names: str, to: Sequence[str] | None = None) -> int:
        """Ask for the next membership of these nodes, all of them or those in `to`; its number."""
        self.number += 1
        address = next(each["address"] for each in self[names[0]].of("join") if each["address"])
        body = {"nodes": list(names), "ranks": [self.ranks[name] for name in names], "address": address}
        for name in names if to is None else to:
            self[name].send("rescale", membership=self.number, **body)
        return self.number

    def rescale(self, *names: str, leave: Sequence[str] = ()) -> dict[str, Any]:
        """As `ask`, and the others leave; returns `reformed`."""
        number = self.ask(*names)
        for name in leave:
            self[name].send("leave")
        return self.wait(names[0], "reformed", membership=number)

    def progressed(self, name: str, steps: int) -> int:
        """Waits until so many more steps than now are done; the step."""
        self.poll()
        packets = self[name].packets
        before = max((each["step"] for each in packets if each["type"] in ("progress", "reformed", "saved")), default=0)
        return until(
            lambda: [each["step"] for each in self[name].of("progress") if each["step"] >= before + steps][:1],
            f"{steps} steps of {name}: {self.tail()}",
        )[0]

    def end(self, name: str) -> int:
        self.poll()
        return self[name].end(self.child(name))

    def lines(self, first: str) -> list[list[str]]:
        """The lines of the log that begin with this word, in words."""
        return [line.split() for line in self.log.read_text().splitlines() if line.startswith(first + " ")]

    def reference(self, *argv: str) -> Callable[[int], dict[int, float]]:
        """Starts the example on one rank, without hpcdl and without a stop; the losses of its first steps."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")}
        path = self._folder / "reference"
        with path.open("wb") as output:
            child = self._origin.start([str(EXAMPLE), *argv], environ | PLAIN | {"PYTHONPATH": str(ROOT)}, output)
        os.setpriority(os.PRIO_PROCESS, child.pid, 10)
        self._stack.callback(child.wait)
        self._stack.callback(child.kill)

        def losses(steps: int) -> dict[int, float]:
            def found() -> dict[int, float]:
                lines = path.read_text().splitlines(keepends=True)
                return curve([line.split() for line in lines if line.startswith("step ") and line.endswith("\n")])

            until(lambda: steps in found() or child.poll(), f"step {steps} of the reference")
            return {step: loss for step, loss in found().items() if step <= steps}

        return losses


@contextmanager
def nodes(folder: Path, origin: Preloaded) -> Iterator[Nodes]:
    """Their scripts are run by forks of `origin`; the ranks of a node that has several are started by it."""
    with ExitStack() as stack:
        yield Nodes(folder, stack, origin)


def curve(lines: list[list[str]]) -> dict[int, float]:
    return {int(words[1]): float(words[3]) for words in lines}


def stopped(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def stop(child: subprocess.Popen[str]) -> None:
    """SIGSTOP, and it has come."""
    child.send_signal(signal.SIGSTOP)
    until(lambda: stopped(child.pid), "a process that is stopped")
