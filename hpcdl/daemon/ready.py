"""How whoever starts a daemon learns that it is ready, or why it is not."""

import json
import logging
import os
import sys

log = logging.getLogger("hpcdl.daemon")


class Ready:
    """Tells whoever started the daemon that it is ready, or why not: one JSON line on an inherited descriptor."""

    def __init__(self, descriptor: int | None) -> None:
        """None: nobody waits; what is told goes to standard output."""
        self._descriptor = descriptor

    def tell(self, body: dict[str, object]) -> None:
        """Once."""
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
