"""What anybody who connects can have libraries say does not fill the daemon's log."""

import logging

from hpcdl.daemon.api.server import MOST, PERIOD_S, LogRateFilter


def test_libraries_are_cut_short_and_what_warns_again_and_again() -> None:
    now = 0.0
    spare = LogRateFilter(lambda: now)

    def told(name: str, level: int = logging.WARNING, line: int = 1) -> str | None:
        record = logging.LogRecord(name, level, "x.py", line, "Invalid %s", ("request",), None)
        return record.getMessage() if spare.filter(record) else None

    assert [told("uvicorn.error") for _ in range(MOST + 3)] == ["Invalid request"] * MOST + [None] * 3
    assert told("asyncio") is None
    assert [told("hpcdl.daemon", logging.INFO) for _ in range(MOST * 2)] == ["Invalid request"] * MOST * 2
    for line in (1, 2):  # each of ours that warns by itself
        found = [told("hpcdl.daemon", logging.ERROR, line) for _ in range(MOST * 2)]
        assert found == ["Invalid request"] * MOST + [None] * MOST
    now = PERIOD_S
    assert told("uvicorn.error") == "Invalid request (4 more of these are left out)"
    assert told("asyncio") == "Invalid request"
