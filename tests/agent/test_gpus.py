"""What an agent says of GPUs that cannot be seen for a while: they are neither free nor granted."""

import asyncio
from pathlib import Path
from typing import cast

from hpcdl.agent.gpus import Gpus
from hpcdl.agent.reports import ReportLog
from hpcdl.gpu import Gpu, GpuSample, GpuSource, GpuState


class Source:
    """One GPU in a state that the test chooses; None: the source itself fails."""

    name = "nvml"
    detail = ""

    def __init__(self) -> None:
        self.state: GpuState | None = "ok"
        self.pids: tuple[int, ...] | None = ()

    def list(self) -> tuple[Gpu, ...]:
        return (Gpu(0, "GPU-0", "V100", 16384),)

    def sample(self) -> tuple[GpuSample, ...]:
        if self.state is None:
            raise RuntimeError("broken")
        return (GpuSample("GPU-0", state=self.state, detail="why", pids=self.pids if self.state == "ok" else None),)


def test_a_gpu_that_cannot_be_seen_is_not_free(tmp_path: Path) -> None:
    async def look() -> None:
        source = Source()
        gpus = Gpus(cast(GpuSource, source), None, "n1", ReportLog(tmp_path / "reports"))
        assert await gpus.held_by((0,), "tag") == []
        assert await gpus.in_the_way((0,), "tag") == {}
        source.state = "unknown"
        assert await gpus.held_by((0,), "tag") == ["GPU 0 cannot be seen: why"]
        assert await gpus.in_the_way((0,), "tag") == {0: "why"}
        source.state = None
        assert await gpus.held_by((0,), "tag") == ["GPU 0 cannot be seen: the GPU source nvml failed"]
        assert list(await gpus.in_the_way((0,), "tag")) == [0]
        source.state = "lost"
        assert await gpus.held_by((0,), "tag") == []
        assert await gpus.in_the_way((0,), "tag") == {0: "why"}
        source.state = "ok"
        assert await gpus.held_by((0,), "tag") == []

    asyncio.run(look())
