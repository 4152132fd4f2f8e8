"""The pipe over which a daemon says that it is ready, or why it is not; `launch` reads it.

One JSON object a line. Nothing here may keep a daemon from running: who waits may have gone.
"""

import json
import logging
import os
import sys

log = logging.getLogger("hpcdl.daemon")


class ReadyPipe:
    """Says what the daemon does until it is ready, and then that it is, or why not.

    A JSON object a line on an inherited descriptor; the last line has no `phase`.
    """

    def __init__(self, descriptor: int | None, *, people: bool = False) -> None:
        """None: nobody waits; what is said goes to standard output, in words where `people` read it."""
        self._descriptor = descriptor
        self._people = people

    def phase(self, text: str) -> None:
        """What the daemon does until then: for who waits."""
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, json.dumps({"phase": text}).encode() + b"\n")
        except OSError:
            pass  # nobody waits any more

    def tell(self, body: dict[str, object]) -> None:
        """Says that it is ready, or with `error` why not; once."""
        if self._people:
            started = "daemon (pid {pid}) started on {home}: Ctrl-C saves all jobs and stops it\n"
            stream, text = (sys.stderr, "hpcdl: {error}\n") if "error" in body else (sys.stdout, started)
            stream.write(text.format(**body) + (f"{body['note']}\n" if "note" in body else ""))
            stream.flush()
            return
        line = json.dumps(body) + "\n"
        if self._descriptor is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        try:
            os.write(self._descriptor, line.encode())
            os.close(self._descriptor)
        except OSError:
            log.info("nobody waits for the start any more")
        self._descriptor = None
