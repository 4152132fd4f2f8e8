"""What some policies need compiled is loaded ahead of their decisions, beside the daemon's work: that takes seconds."""

import logging
import threading
from collections.abc import Callable

from hpcdl.counts import prepare

log = logging.getLogger("hpcdl.daemon")

POLICIES = frozenset({"bftrainer", "harvest"})
"""These optimise over all nodes whenever one comes or goes."""


class Ahead:
    """Loads the compiled loops of `hpcdl.counts`, once, in a thread of its own. Until then decisions do without."""

    def __init__(self, load: Callable[[], object] = prepare) -> None:
        self._load = load
        self._started = self._begun = False

    def start(self, policy: str) -> None:
        """From now on it may cost the processor something: the daemon is ready. `policy`: the one in use."""
        self._started = True
        self.look(policy)

    def look(self, policy: str) -> None:
        """Begins to load where this policy needs it; from any thread, at every change."""
        if self._started and not self._begun and policy in POLICIES:
            self._begun = True
            # Not a daemon thread: a compiler that is cut off at the end of the process may take that down.
            threading.Thread(target=self._run, name="ahead").start()

    def _run(self) -> None:
        try:
            self._load()
        except Exception:  # a compiler's own affair: decisions are slower, and the same
            log.exception("the loops of hpcdl.counts cannot be loaded")
