"""The connections of a supervisor: ranks, the agent, and those who have not said yet which they are.

Nobody who is slow, silent or broken holds up the others, or costs memory without end. What a packet means is the
supervisor's to decide (supervisor.py); sockets are in side_channel.py, packets in packets.py.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcdl.agent.supervisor import packets
from hpcdl.agent.supervisor.packets import (
    AttachPacket,
    FromAgent,
    FromRank,
    HelloPacket,
    MalformedPacket,
    ProgressPacket,
    WrongVersion,
)
from hpcdl.agent.supervisor.ranks import Rank
from hpcdl.agent.supervisor.side_channel import Closed, Listener, RunningClock, SideChannelClient
from hpcdl.core.model.series import MOST_NAMES

if TYPE_CHECKING:
    from hpcdl.agent.supervisor.supervisor import Supervisor

HELLO_S = 10.0  # a client says within this time what it is

CONNECTIONS_LIMIT = 256

PACKETS_AT_ONCE = 64  # of one client, then the others get their turn

PACKETS_AT_END = 10_000

PROGRESS_INTERVAL_S = 0.2

RETRY_S = 1.0


class ClientRefusal(Exception):
    """This client is not taken; the message says why."""


class Clients:
    """All connections, in the supervisor's selector; `records` is the growing list that the agent gets."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listener: Listener,
        clock: RunningClock,
        records: list[bytes],
        supervisor: Supervisor,
        note: Callable[[str], None],
    ) -> None:
        self._selector = selector
        self._listener = listener
        self._clock = clock
        self._records = records
        self._supervisor = supervisor
        self._note = note
        self._since: dict[SideChannelClient, float] = {}
        self._ranks: dict[SideChannelClient, Rank] = {}
        self._agent: AgentLink | None = None
        self._progress: ProgressPacket | None = None
        self._measured: ProgressPacket | None = None  # the newest one that said its metric
        self._metrics: dict[str, tuple[int, float | None]] = {}  # by name: the newest value, and its step
        self._progress_due: float | None = None
        self._progress_sent = self._clock.now() - PROGRESS_INTERVAL_S
        self._listen_again: float | None = None
        self.absent_since: float | None = clock.now()
        self.malformed = 0
        selector.register(listener, selectors.EVENT_READ, self.accept)

    @property
    def delivered(self) -> bool:
        """The agent has every record, or there is none to take them."""
        return self._agent is None or not self._agent.waiting

    @property
    def next_due(self) -> float | None:
        """When `look_after` should be called at the latest, for progress to flow."""
        return self._progress_due

    # out

    def send(self, rank: Rank, kind: str, **body: object) -> None:
        """A packet to a rank, if it is connected."""
        if rank.connection is not None:
            self._send(rank.connection, kind, **body)

    def push(self) -> None:
        """Records, and progress if it is set, to the agent, as far as it takes them."""
        if self._agent is None:
            return
        connection = self._agent.connection
        try:
            self._agent.push(self._clock.now())
        except Closed:
            self._drop(connection)
        else:
            self._interest(connection, self._agent.waiting)

    def progress(self, progress: ProgressPacket) -> None:
        """To the agent, soon; only the newest counts, and the newest of each metric."""
        self._progress = progress
        for name, value in progress.measured.items():
            if name in self._metrics or len(self._metrics) < MOST_NAMES:
                self._metrics[name] = progress.step, value
        if progress.metric is not None:
            self._measured = progress
        if self._agent is not None and self._progress_due is None:
            self._progress_due = self._progress_sent + PROGRESS_INTERVAL_S

    def _send(self, connection: SideChannelClient, kind: str, **body: object) -> None:
        try:
            connection.send(packets.encode(kind, **body))
        except Closed:
            self._drop(connection)
        else:
            self._interest(connection, connection.waiting)

    def _refuse(self, connection: SideChannelClient, why: str) -> None:
        self._send(connection, "refused", why=why)
        self._drop(connection)

    def _interest(self, connection: SideChannelClient, writing: bool) -> None:
        if connection not in self._since:
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        key = self._selector.get_key(connection)
        if key.events != events:
            self._selector.modify(connection, events, key.data)

    # in

    def accept(self) -> None:
        """Take those who wait at the socket."""
        try:
            while (connection := self._listener.accept()) is not None:
                if len(self._since) >= CONNECTIONS_LIMIT:
                    connection.close()
                    continue
                self._since[connection] = self._clock.now()
                self._selector.register(connection, selectors.EVENT_READ, self._reader(connection))
        except OSError as error:
            # No descriptors: the socket would stay readable and keep us turning, so look at it again later.
            if self._listen_again is None:
                self._selector.unregister(self._listener)
                self._note(f"no connection can be accepted: {error.strerror}")
            self._listen_again = self._clock.now() + RETRY_S

    def _reader(self, connection: SideChannelClient) -> Callable[[], None]:
        return lambda: self._read(connection, PACKETS_AT_ONCE)

    def drain(self) -> None:
        """Hear what those said who are gone by now: their packets wait in the sockets."""
        self.accept()
        for connection in list(self._since):
            self._read(connection, PACKETS_AT_END)

    def look_after(self) -> None:
        """Once a turn: progress to the agent, clients that never say what they are, an agent that does not read."""
        now = self._clock.now()
        if self._listen_again is not None and now >= self._listen_again:
            self._listen_again = None
            self._selector.register(self._listener, selectors.EVENT_READ, self.accept)
        for connection, since in list(self._since.items()):
            if now - since > HELLO_S and connection not in self._ranks and not self._is_agent(connection):
                self._drop(connection)
        if self._progress_due is not None and now >= self._progress_due:
            self._pass_progress()
        if self._agent is not None and self._agent.waiting:
            self.push()

    def _pass_progress(self) -> None:
        """The newest progress, with the newest value of each metric, is to go to the agent now."""
        self._progress_due = None
        self._progress_sent = self._clock.now()
        if self._agent is not None and self._progress is not None:
            newest = self._progress
            body: dict[str, object] = {"step": newest.step, "total": newest.total, "samples": newest.samples}
            if self._measured is not None:
                body |= {"metric": self._measured.metric, "metric_step": self._measured.step}
            if self._metrics:
                body["newest"] = self._metrics
            self._agent.progress = packets.encode("progress", **body)

    def finish(self) -> None:
        """The last progress goes to the agent ahead of the records that follow."""
        if self._progress_due is not None:
            self._pass_progress()
            self.push()

    def _is_agent(self, connection: SideChannelClient) -> bool:
        return self._agent is not None and self._agent.connection is connection

    def _read(self, connection: SideChannelClient, most: int) -> None:
        if self._is_agent(connection):
            self.push()
        try:
            connection.flush()
            while most and connection in self._since and (raw := connection.receive()) is not None:
                most -= 1
                self._on_packet(connection, raw)
        except Closed:
            self._drop(connection)
        except Exception:
            self._drop(connection)  # what failed once would fail again at once, and for ever
            raise
        if connection in self._ranks:
            self._interest(connection, connection.waiting)

    def _on_packet(self, connection: SideChannelClient, raw: bytes) -> None:
        try:
            packet = packets.parse(raw)
        except MalformedPacket:
            self.malformed += 1
            return
        except WrongVersion as error:
            self._refuse(connection, str(error))
            return
        rank = self._ranks.get(connection)
        if isinstance(packet, AttachPacket):
            self._attach(connection, packet)
        elif isinstance(packet, HelloPacket):
            self._hello(connection, packet)
        elif isinstance(packet, FromAgent):
            if self._is_agent(connection):
                self._supervisor.on_agent(packet)
        elif isinstance(packet, FromRank) and rank is not None:
            self._supervisor.on_rank(rank, packet)

    def _attach(self, connection: SideChannelClient, packet: AttachPacket) -> None:
        if self._is_agent(connection) or connection in self._ranks:
            self.malformed += 1
            return
        if packet.pid != connection.pid:
            self._refuse(connection, f"pid {packet.pid} attached through a socket of pid {connection.pid}")
            return
        before = [each for each, rank in self._ranks.items() if rank.pid == packet.pid]
        try:
            rank = self._supervisor.on_attach(packet, connection)
        except ClientRefusal as refusal:
            self._refuse(connection, str(refusal))
            return
        for each in before:
            self._drop(each)
        self._ranks[connection] = rank
        self._send(connection, "attached")
        self._supervisor.on_attached(rank)

    def _hello(self, connection: SideChannelClient, packet: HelloPacket) -> None:
        if connection in self._ranks:
            self.malformed += 1
            return
        before, self._agent = self._agent, AgentLink(connection, self._records, packet.after)
        self.absent_since = None
        if before is not None and before.connection is not connection:
            self._refuse(before.connection, "another agent has connected")
        if self._progress is not None:
            self.progress(self._progress)
        self.push()

    def _drop(self, connection: SideChannelClient) -> None:
        if self._since.pop(connection, None) is None:
            return
        self._selector.unregister(connection)
        rank = self._ranks.pop(connection, None)
        if rank is not None and rank.connection is connection:
            rank.connection = None
            rank.saving = False
            self._supervisor.on_gone(rank)
        if self._is_agent(connection):
            self._agent = None
            self._progress_due = None
            self.absent_since = self._clock.now()
        connection.close()


STUCK_S = 30.0  # an agent that reads nothing for so long is as good as absent


class AgentLink:
    """The agent's connection: every record in order, at the agent's pace, and the newest progress.

    It keeps only a position in the records, so that a slow agent costs no memory and delays nobody.
    """

    def __init__(self, connection: SideChannelClient, packets: list[bytes], after: int) -> None:
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
