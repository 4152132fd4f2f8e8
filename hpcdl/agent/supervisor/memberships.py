"""The memberships that the agent asks for: passed on to the ranks, and what the ranks report about them.

Under torchrun nobody reports that a membership has formed, or was lost: both are concluded from the ranks that are seen
here. Why a trainer that only fails again is ended is decided with exit_cause.py.
"""

from __future__ import annotations

from dataclasses import asdict

from hpcdl.agent.supervisor.exit_cause import LONG_S, OUTSIDE_SIGNALS, OWN_LONG_S, RankFailure, Repeats
from hpcdl.agent.supervisor.packets import BrokenPacket, JoinPacket, ReadyPacket, ReformedPacket, RescalePacket
from hpcdl.agent.supervisor.ranks import Rank, TrainerProcesses, world_of
from hpcdl.agent.supervisor.start_file import IN_PROCESS, TORCHRUN, Start
from hpcdl.agent.supervisor.termination import Recorder, Send

LOOK_INTERVAL_S = 0.2
LOOK_INTERVAL_FORMED_S = 0.5
SILENT_S = 10.0
"""Ranks that torchrun started and that have not attached for so long are taken for ones that never do."""
UNCHANGED_S = 15.0
"""Ranks of an earlier membership that live on for so long after another was ordered are its ranks: it is the same."""
SMALLER_S = 2.0
"""torchrun may form a world without a node that is only slow, and forms the next one as soon as that comes."""
FORMING_S = 45.0
"""For so long after a membership was ordered, a smaller world is one on the way to it."""
GONE_S = 20.0
"""Ranks that ended without others being started for so long: torchrun waits for nodes that may never come."""
MOST_STARTS = 4
"""So many starts of rank 0 under torchrun with nothing gained by any of them, and the next is one too many."""


class Memberships:
    """The memberships of one attempt on this node. Times are the supervisor's clock's. Only the newest counts, save for
    checkpoints of earlier ones."""

    def __init__(self, start: Start, trainer: TrainerProcesses, record: Recorder, send: Send) -> None:
        self._start = start
        self._trainer = trainer
        self._record = record
        self._send = send
        self._ordered: dict[int, RescalePacket] = {}
        self._newest: RescalePacket | None = None
        self._ordered_at = 0.0
        self._broken = False  # since the newest was ordered
        self._formed = False  # the newest, under torchrun
        self._seen_at: float | None = None  # ranks of the right number, which have not attached
        self._seen: frozenset[int] = frozenset()  # their processes
        self._next_look = 0.0
        self._trained_at: float | None = None  # when ranks here were last heard to train
        self._short = ""  # of ranks: what `_short_of` says of them
        self._short_since: float | None = None
        self._counted: frozenset[int] = frozenset()  # processes of the membership that formed last
        self._starts = 0
        self._gained: tuple[int, int | None] = (0, None)
        self._repeats = Repeats(LONG_S if start.rescale == TORCHRUN else OWN_LONG_S)

    @property
    def ordered(self) -> bool:
        """Whether this node was ever asked to be in one."""
        return self._newest is not None

    def order(self, packet: RescalePacket, now: float) -> None:
        """A membership to form. One that is not newer than the newest changes nothing."""
        if self._newest is not None and packet.membership <= self._newest.membership:
            return
        self._ordered[packet.membership] = self._newest = packet
        self._ordered_at = now
        self._broken = self._formed = False
        self._seen_at = self._short_since = None
        self._record("rescaling", membership=packet.membership)
        for rank in self._trainer.living_ranks:
            self._send(rank, "rescale", **asdict(packet))

    def greet(self, rank: Rank, step: int | None) -> str:
        """A rank has attached: it may be behind. `step`: the highest so far.

        Why the trainer is to be ended, else "". torchrun starts ranks again whatever they fail of, since it cannot
        distinguish the loss of a peer from an error in the script; the latter fails at the same step again and again.
        """
        if self._newest is not None:
            self._send(rank, "rescale", **asdict(self._newest))
        newest = self._newest
        if self._start.rescale != TORCHRUN or rank.number != 0 or newest is None or rank.world != newest.size:
            return ""  # where nodes still come or have gone, that is why they are started again
        gained = (newest.membership, step)
        self._starts = self._starts + 1 if gained == self._gained else 1
        self._gained = gained
        if self._starts <= MOST_STARTS:
            return ""
        where = "before its first step" if step is None else f"at step {step}"
        return f"its ranks failed {MOST_STARTS} times in a row {where}: see its log"

    def failed(self, failure: RankFailure, oom: bool, step: int | None, now: float) -> tuple[int, str]:
        """torchrun has seen a rank fail. How often it was the same, and why the trainer is to be ended, else ""."""
        outside = failure.signal in OUTSIDE_SIGNALS and not oom
        if outside:
            self._starts = 0  # the next one is no doing of the script's
        membership = 0 if self._newest is None else self._newest.membership
        return self._repeats.failed(failure, outside, membership, step, now)

    def writes(self, rank: Rank, membership: int) -> bool | None:
        """Whether a checkpoint of that membership is this rank's to write; None where it knows no such membership.

        Ranks that form memberships themselves attach with their number on the node. Any other attaches with its
        number in the one membership that its process ever sees, which it may have learnt after it attached.
        """
        ordered = self._ordered.get(membership)
        if self._start.rescale != IN_PROCESS:
            return rank.number == 0 if ordered is not None or membership == rank.membership else None
        return None if ordered is None else rank.number == 0 and ordered.nodes[0] == self._start.node

    def trained(self, now: float) -> None:
        """A rank has done a step."""
        self._trained_at = now

    def on_rank(self, rank: Rank, packet: JoinPacket | ReadyPacket | ReformedPacket | BrokenPacket, now: float) -> None:
        """What a rank says about memberships."""
        match packet:
            case JoinPacket():
                if packet.address:
                    self._record("join", address=packet.address)
            case ReadyPacket():
                rank.ready_step, rank.ready_at, rank.trained_before = packet.step, now, self._trained_at
            case ReformedPacket():
                if self._newest is not None and packet.membership == self._newest.membership and self._leads:
                    rank.membership = packet.membership
                    self._record("reformed", membership=packet.membership, step=packet.step, seconds=packet.seconds)
            case BrokenPacket():
                # One of a node is enough. It is recorded as of the newest membership: if that is not the one that
                # broke, it was chosen without knowing of this.
                self._break(packet.step, packet.why)

    @property
    def _leads(self) -> bool:
        return self._newest is not None and self._newest.nodes[0] == self._start.node

    def look(self, now: float, step: int | None, ends: bool = False) -> None:
        """Once a turn: under torchrun nobody says that a membership has formed, or that torchrun goes on with fewer
        ranks than it has, but both can be seen on its first node. `step`: the last one that is known. `ends`: the
        ranks are on their way out.
        """
        newest = self._newest
        if self._start.rescale != TORCHRUN or newest is None or not self._leads or now < self._next_look:
            return
        self._next_look = now + (LOOK_INTERVAL_FORMED_S if self._formed else LOOK_INTERVAL_S)
        if not self._formed:
            self._look_for(newest, now, step)
        if not (self._broken or ends):
            self._look_for_loss(newest, now, step)

    def _look_for(self, newest: RescalePacket, now: float, step: int | None) -> None:
        """Records that the newest has formed: when a rank of a world of that size is ready, or, if none ever attaches,
        when such ranks run."""
        old = self._counted if now - self._ordered_at < UNCHANGED_S else frozenset()
        living = [rank for rank in self._trainer.living_ranks if rank.ready_step is not None and rank.pid not in old]
        first = min((rank for rank in living if rank.world == newest.size), key=lambda each: each.number, default=None)
        if first is not None:
            # Where ranks of before live on, nothing was lost. Others train until torchrun ends them, or a peer is lost.
            since = self._ordered_at if first.trained_before is None else first.trained_before
            self._form(newest, first.ready_step or 0, 0.0 if first.pid in self._counted else first.ready_at - since)
        elif not self._trainer.attached:
            below = [each.pid for each in self._trainer.below() if each.pid not in old]
            ranks = frozenset(pid for pid in below if world_of(pid) == newest.size)
            if not ranks & self._seen:  # none yet, or those that were seen are gone and others have begun
                self._seen, self._seen_at = ranks, now
            elif self._seen_at is not None and now - self._seen_at >= SILENT_S:
                self._form(newest, step or 0, max(0.0, self._seen_at - self._ordered_at))

    def _look_for_loss(self, newest: RescalePacket, now: float, step: int | None) -> None:
        """Ranks that torchrun starts anew in a smaller world, or not at all, have lost a node. What is on the way to a
        membership may be smaller, too, and so is a world that a slow node has yet to come to."""
        short, patience = "", 0.0
        if self._formed or now - self._ordered_at >= FORMING_S:
            short, patience = self._short_of(newest)
        if short != self._short or not short:
            self._short, self._short_since = short, None
        if not short:
            return
        self._short_since = now if self._short_since is None else self._short_since
        if now - self._short_since >= patience:
            self._break(step or 0, short)

    def _short_of(self, newest: RescalePacket) -> tuple[str, float]:
        """Why the ranks here are not those of the membership, "" if they may be; and how long that may last."""
        if self._trainer.attached:
            worlds, patience = [rank.world for rank in self._trainer.living_ranks], SMALLER_S
        else:
            worlds, patience = [world_of(each.pid) for each in self._trainer.below()], SILENT_S
        known = [world for world in worlds if world is not None]
        if any(world < newest.size for world in known):
            return f"torchrun goes on with {min(known)} of {newest.size} ranks", patience
        return ("" if known else f"its ranks ended, and torchrun starts no others without {newest.size}", GONE_S)

    def _break(self, step: int, why: str) -> None:
        if self._newest is not None and not self._broken:
            self._broken = True
            self._record("broken", membership=self._newest.membership, step=step, why=why)

    def _form(self, newest: RescalePacket, step: int, seconds: float) -> None:
        self._formed = True
        self._counted = frozenset(each.pid for each in self._trainer.below())
        self._record("reformed", membership=newest.membership, step=step, seconds=round(max(0.0, seconds), 3))
