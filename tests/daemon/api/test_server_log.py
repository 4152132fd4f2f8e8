"""What anybody who connects can have libraries say does not fill the daemon's log."""

import logging

from hpcdl.daemon.api.server import MOST, PERIOD_S, LogRateFilter


def test_libraries_are_cut_short_and_ours_is_not() -> None:
    now = 0.0
    spare = LogRateFilter(lambda: now)

    def told(name: str) -> str | None:
        record = logging.LogRecord(name, logging.WARNING, "x.py", 1, "Invalid %s", ("request",), None)
        return record.getMessage() if spare.filter(record) else None

    assert [told("uvicorn.error") for _ in range(MOST + 3)] == ["Invalid request"] * MOST + [None] * 3
    assert told("asyncio") is None
    assert [told("hpcdl.daemon") for _ in range(MOST * 2)] == ["Invalid request"] * MOST * 2
    now = PERIOD_S
    assert told("uvicorn.error") == "Invalid request (4 more of these are left out)"
    assert told("asyncio") == "Invalid request"
