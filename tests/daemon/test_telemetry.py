"""Heartbeats to samples, in one call a second."""

import asyncio
from collections.abc import Sequence

import pytest

from hpcdl.daemon import agents
from hpcdl.daemon.agents import Telemetry
from hpcdl.ledger.samples import GpuTelemetry
from hpcdl.wire.messages import GpuLine, HeartbeatMessage


def test_what_comes_together_is_handed_over_together(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agents, "GATHER_S", 0.05)
    kept: list[Sequence[GpuTelemetry]] = []

    async def run() -> None:
        handed = asyncio.Event()

        def keep(samples: Sequence[GpuTelemetry]) -> None:
            kept.append(samples)
            handed.set()

        heard = Telemetry(lambda: 7.0, keep).heard
        heard("n1", HeartbeatMessage((GpuLine(0, 50, 100, 90.0), GpuLine(1, None, None, None)), ()))
        heard("n2", HeartbeatMessage((GpuLine(0, 60, None, None),), ()))
        heard("n3", HeartbeatMessage((GpuLine(0, 10**300, None, None),), ()))
        assert kept == []
        await handed.wait()
        handed.clear()
        heard("n1", HeartbeatMessage((GpuLine(0, 70, 100, 90.0),), ()))
        await handed.wait()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert kept == [
        [GpuTelemetry(7.0, "n1", 0, 50, 100, 90.0), GpuTelemetry(7.0, "n2", 0, 60, None, None)],
        [GpuTelemetry(7.0, "n1", 0, 70, 100, 90.0)],
    ]
    assert "samples of n3 are dropped" in caplog.text
