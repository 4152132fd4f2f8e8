"""Waiting for something to read."""

import fcntl
import os
import resource

from hpcdl.wire.readable import readable

BEYOND_SELECT = 1100


def test_those_with_something_to_read_or_at_their_end() -> None:
    (first, to_first), (second, to_second) = os.pipe(), os.pipe()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        high = fcntl.fcntl(second, fcntl.F_DUPFD, BEYOND_SELECT)
        assert readable([first, high], 0.01) == readable([], 0.01) == []
        os.write(to_second, b"a")
        assert readable([first, high], 60) == readable([high], None) == [high]
        os.close(to_first)
        assert readable([first, high], 60) == [first, high]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for each in (first, second, to_second, high):
            os.close(each)
