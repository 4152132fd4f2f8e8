"""The agent's connection: every record in order, at the agent's pace, and the newest progress."""

from __future__ import annotations

from hpcdl.agent.sidechannel import Closed, Connection

STUCK_S = 30.0  # an agent that reads nothing for so long is as good as absent


class AgentLink:
    """Keeps only a position in the records, so that a slow agent costs no memory and delays nobody."""

    def __init__(self, connection: Connection, packets: list[bytes], after: int) -> None:
        """`packets` is the list of all records, which grows; the agent has the first `after` of them."""
        self.connection = connection
        self._packets = packets
        self._next = min(after, len(packets))
        self._stuck_since: float | None = None
        self.progress: bytes | None = None

    @property
    def waiting(self) -> bool:
        """True while the agent has not taken all that there is."""
        return self._next < len(self._packets) or self.progress is not None

    def push(self, now: float) -> None:
        """Send what the agent takes. Raises Closed, also when it has taken nothing for STUCK_S."""
        while self.waiting:
            record = self._next < len(self._packets)
            packet = self._packets[self._next] if record else self.progress
            if packet is None:
                break
            if not self.connection.offer(packet):
                self._check(now)
                return
            self._stuck_since = None
            if record:
                self._next += 1
            else:
                self.progress = None
        self._stuck_since = None

    def _check(self, now: float) -> None:
        if self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since >= STUCK_S:
            raise Closed("the agent does not read")
