"""Batch scripts as agents start them: the nodes of one job on this machine."""

import os
import socket
import subprocess
from pathlib import Path

from hpcdl.agent.start_request import batch_script
from hpcdl.core.model.job import BatchTasks

TIMEOUT_S = 180  # for what takes a second where nobody else computes


class Machine:
    """Nodes of one job on this machine, each with its run folder; `start` is what agents do."""

    def __init__(self, folder: Path, nodes: list[str]) -> None:
        self.folder, self.nodes = folder, nodes
        self.work = folder / "work"
        self.work.mkdir()
        self._sockets = []
        for node in nodes:
            (folder / node).mkdir()
            side = socket.socket(socket.AF_UNIX)
            side.bind(str(folder / node / "s"))
            self._sockets.append(side)

    def environment(self, node: str, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"], "HOME": str(self.work), "USER": "me", "HPCDL_JOB": "7", "HPCDL_JOB_NAME": "net",
            "HPCDL_INCARNATION": "1", "HPCDL_NODE": node, "HPCDL_NODES": ",".join(self.nodes), "HPCDL_GPU_COUNT": "2",
            "HPCDL_SOCKET": str(self.folder / node / "s"), "HPCDL_ADDRESS": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "2",
            "PET_NNODES": "2", "CUDA_VISIBLE_DEVICES": f"{node}-a,{node}-b", **more,
        }  # fmt: skip

    def start(self, script: str, batch: BatchTasks, **more: str) -> "list[subprocess.Popen[str]]":
        """A process for each node."""
        path = self.work / "script.sh"
        path.write_text(script)
        first = script.split("\n", 1)[0][2:].split()
        argv = batch_script(batch, str(self.folder / ".steps.1"), (*first, str(path)))
        return [
            subprocess.Popen(
                argv, env=self.environment(node, **more), cwd=self.work, text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for node in self.nodes
        ]  # fmt: skip

    def run(self, script: str, batch: BatchTasks, **more: str) -> tuple[int, str, str]:
        """The code of the first node's, and what all wrote."""
        running = self.start(script, batch, **more)
        done = [each.communicate(timeout=TIMEOUT_S) for each in running]
        assert [each.returncode for each in running[1:]] == [0] * (len(running) - 1)
        return running[0].returncode, "".join(out for out, _ in done), "".join(err for _, err in done)

    def close(self) -> None:
        for each in self._sockets:
            each.close()
