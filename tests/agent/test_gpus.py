"""What an agent says of GPUs that cannot be seen for a while, are lost, or change their numbers; who had them when."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import cast

import pytest

from hpcdl.agent import gpus
from hpcdl.agent.gpu.device import Gpu, GpuSample, GpuSource, GpuState
from hpcdl.agent.gpus import Gpus, Grants, Side
from hpcdl.agent.report_log import ReportLog


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
        assert await gpus.held_by(("GPU-0",), "tag") == []
        assert await gpus.in_the_way(("GPU-0",), "tag") == {}
        source.state = "unknown"
        assert await gpus.held_by(("GPU-0",), "tag") == ["GPU 0 cannot be seen: why"]
        assert await gpus.in_the_way(("GPU-0",), "tag") == {"GPU-0": "GPU 0: why"}
        source.state = None
        assert await gpus.held_by(("GPU-0",), "tag") == ["GPU 0 cannot be seen: the GPU source nvml failed"]
        assert list(await gpus.in_the_way(("GPU-0",), "tag")) == ["GPU-0"]
        source.state = "lost"
        assert await gpus.held_by(("GPU-0",), "tag") == []
        assert await gpus.in_the_way(("GPU-0",), "tag") == {"GPU-0": "GPU 0: why"}
        source.state = "ok"
        assert await gpus.held_by(("GPU-0",), "tag") == []

    asyncio.run(look())


class Numbered(Source):
    """GPUs with indices that the test chooses, all of them ok but those that are lost."""

    def __init__(self, *uuids: str) -> None:
        super().__init__()
        self.uuids, self.lost = uuids, set[str]()

    def list(self) -> tuple[Gpu, ...]:
        return tuple(Gpu(index, uuid, "V100", 16384) for index, uuid in enumerate(self.uuids))

    def sample(self) -> tuple[GpuSample, ...]:
        return tuple(
            GpuSample(uuid, state="lost", detail="fell off") if uuid in self.lost else GpuSample(uuid, pids=())
            for uuid in self.uuids
        )


def told(reports: ReportLog) -> list[tuple[int, str, str]]:
    return [(each.body["index"], each.body["state"], each.body["detail"]) for each in reports.entries.values()]


def test_gpus_that_change_their_numbers(tmp_path: Path) -> None:
    """What was granted stays granted by its UUID, the daemon's numbers mean its inventory, and moved ones are dirty."""

    async def look() -> None:
        source, reports = Numbered("A", "B", "C"), ReportLog(tmp_path / "reports")
        gpus = Gpus(cast(GpuSource, source), None, "n1", reports)
        await gpus.refresh()
        assert [(gpu.index, gpu.uuid) for gpu in gpus.inventory()] == [(0, "A"), (1, "B"), (2, "C")]
        assert gpus.claim((7, 1), gpus.meant((1,))) is None
        source.uuids = ("B", "C")
        await gpus.refresh()
        assert gpus.renumbered
        assert told(reports) == [], "an index of which inventory?"
        assert gpus.meant((1,)) == ("B",)
        assert gpus.shown(("B",)) == "B"
        with pytest.raises(ValueError, match="no GPU A any more"):
            gpus.shown(gpus.meant((0,)))
        found = gpus.inventory()
        assert [(gpu.index, gpu.uuid, gpu.state) for gpu in found] == [(0, "B", "dirty"), (1, "C", "ok")]
        assert found[0].detail == "held by job 7.1, which was given it as GPU 1"
        assert not gpus.renumbered
        assert gpus.claim((8, 1), gpus.meant((0,))) == "GPU 0 is still held by job 7.1"
        assert gpus.claim((8, 1), gpus.meant((1,))) is None
        gpus.release((7, 1))
        await gpus.refresh()
        assert told(reports) == [(0, "ok", "")]
        assert await gpus.lost(("B",)) == ""
        source.lost = {"B"}
        assert await gpus.lost(("B", "C")) == "GPU 0 (B) is lost: fell off"
        assert told(reports)[1:] == [(0, "lost", "fell off")]

    asyncio.run(look())


def test_an_inventory_after_changes_that_were_not_sent(tmp_path: Path) -> None:
    """A report that waits is older than the inventory, and comes after it: how things are comes once more."""

    async def look() -> None:
        source, reports = Numbered("A"), ReportLog(tmp_path / "reports")
        gpus = Gpus(cast(GpuSource, source), None, "n1", reports)
        await gpus.refresh()
        gpus.inventory()
        source.lost = {"A"}
        await gpus.refresh()
        source.lost = set()
        again = Gpus(cast(GpuSource, source), None, "n1", reports)
        await again.refresh()
        assert [gpu.state for gpu in again.inventory()] == ["ok"]
        assert told(reports) == [(0, "lost", "fell off"), (0, "ok", "")]

    asyncio.run(look())


def test_grants_are_put_aside_when_they_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Grants(tmp_path)
    it.granted((7, 1), ("A", "B"))
    monkeypatch.setattr(gpus, "LIMIT", 10)
    it.freed((7, 1), ("A", "B"))
    text = (tmp_path / "grants.jsonl.1").read_text() + (tmp_path / "grants.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["uuid"], line["what"], line["job"]) for line in lines] == [
        ("A", "granted", 7),
        ("B", "granted", 7),
        ("A", "freed", 7),
        ("B", "freed", 7),
    ]
    assert lines[0]["boot"] <= lines[-1]["boot"]
    assert (tmp_path / "grants.jsonl").stat().st_mode & 0o077 == 0
    (tmp_path / "grants.jsonl").unlink()
    (tmp_path / "grants.jsonl").mkdir()
    it.granted((8, 1), ("A",))  # costs nobody the job, and waits
    (tmp_path / "grants.jsonl").rmdir()
    it.freed((8, 1))
    lines = [json.loads(line) for line in (tmp_path / "grants.jsonl").read_text().splitlines()]
    assert [(line["uuid"], line["what"], line["job"]) for line in lines] == [("A", "granted", 8), (None, "freed", 8)]


def test_two_that_share_a_gpu_have_the_memory_of_their_processes(tmp_path: Path) -> None:
    """By the tags of real processes; a GPU that one has alone is not looked at, nor anybody else's process."""
    tags = ("i:1:1:n1", "i:2:1:n1", "i:2:1:n1", "i:21:1:n1")
    children = [subprocess.Popen(["sleep", "600"], env={**os.environ, "HPCDL_TAG": tag}) for tag in tags]
    memory = tuple((child.pid, 1 << number) for number, child in enumerate(children))

    class Shared(Source):
        def sample(self) -> tuple[GpuSample, ...]:
            return (GpuSample("GPU-0", pids=tuple(pid for pid, _ in memory), process_mib=memory),)

    async def look() -> list[tuple[tuple[int, int, int], ...]]:
        gpus = Gpus(cast(GpuSource, Shared()), None, "n1", ReportLog(tmp_path / "reports"))
        await gpus.refresh()
        found = []
        for job, side in ((1, Side.FOREGROUND), (2, Side.BACKGROUND)):
            assert gpus.claim((job, 1), ("GPU-0",), side=side) is None
            found.append(gpus.lines({}, lambda key: f"i:{key[0]}:{key[1]}:n1")[0].shares)
        return found

    try:
        assert asyncio.run(look()) == [(), ((1, 1, 1), (2, 1, 6))]
    finally:
        for child in children:
            child.kill()
            child.wait()
