"""What of a batch system does not work now: told when it begins, and when it is over."""

import logging
from collections.abc import Mapping

from hpcdl.core import commands as cmd
from hpcdl.core.units import seconds_text
from hpcdl.daemon.loop import Loop

log = logging.getLogger("hpcdl.daemon")


class Troubles:
    """For one thread; others read `now` and may call `end`."""

    def __init__(self, kind: str, loop: Loop) -> None:
        """`kind`: of the batch system, for people. `loop`: has them recorded."""
        self.now: Mapping[str, str] = {}
        """The newest detail of each, by what was asked for; replaced as a whole."""
        self._kind = kind
        self._loop = loop
        self._since: dict[str, float] = {}
        self._ended = False

    def end(self) -> None:
        """From here on nothing is a trouble."""
        self._ended = True

    def bad(self, what: str, detail: str) -> None:
        """It does not work: recorded once, until it works again; another detail is only logged."""
        if self._ended:
            return
        if self.now.get(what) != detail:
            log.warning("%s (%s): %s", self._kind, what, detail)
        if what not in self.now:
            self._since[what] = self._loop.now()
            self._loop.send(cmd.Trouble(f"{self._kind}: {what}", detail))
        self.now = {**self.now, what: detail}

    def good(self, what: str) -> None:
        """It works."""
        if what in self.now:
            self.now = {key: text for key, text in self.now.items() if key != what}
            lasted = seconds_text(self._loop.now() - self._since.pop(what))
            self._loop.send(cmd.Trouble(f"{self._kind}: {what}", f"works again, after {lasted}"))
