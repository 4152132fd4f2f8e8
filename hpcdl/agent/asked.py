"""What is asked of a part of an incarnation, by the daemon and by its agent, and passed on to its supervisor."""

import asyncio
import contextlib
import logging
import subprocess
from dataclasses import replace
from typing import Any

from hpcdl.agent import start
from hpcdl.agent.grant import Grant
from hpcdl.agent.load import Training
from hpcdl.agent.orders import Refusal, indices_of
from hpcdl.agent.remains import Remains
from hpcdl.agent.reports import Key, boottime
from hpcdl.agent.rescales import Rescales
from hpcdl.agent.shell import Beside
from hpcdl.agent.shells import place
from hpcdl.agent.site import Site, Stage
from hpcdl.agent.stillness import Stillness, clock
from hpcdl.agent.translate import Names, Progress
from hpcdl.core import events as ev
from hpcdl.core.model import Cause
from hpcdl.wire.messages import DrillMessage, RequestMessage

log = logging.getLogger("hpcdl.agent")

HUNG_AFTER_S = 60.0
"""Beyond the grace: a supervisor that has not ended its trainer by then is ended itself."""
KILL_S = 3.0
"""For what is killed on a node that is not ours any more to be gone."""
UNOPENED_GRACE_S = 5.0
"""For a trainer whose gate cannot be opened."""
STALE_GRACE_S = 10.0
"""For a trainer that the daemon does not expect."""
_GOES = {"suspend": "is being suspended", "leave": "leaves this node", "end": "is being ended"}


def _log_of(order: RequestMessage | None, found: start.Found | None) -> str:
    if order is not None and order.log:
        return order.log
    return found.start.log if found is not None and found.start is not None else ""


class Asked:
    """How a part stands, and what it was asked; `incarnations.Part` has its life."""

    def __init__(self, site: Site, key: Key, order: RequestMessage | None, found: start.Found | None) -> None:
        """Either an order to start, or a run folder that an earlier agent made (then `order` may be known as well)."""
        self._site = site
        self.key = key
        self.tag = site.tag(key)
        self.folder = start.folder_of(site.run, key)
        self._order = order
        membership = order.request.membership if order is not None else 1
        self._grace_s = order.spec.grace_s if order is not None and order.spec is not None else 30.0
        self._same_boot = True
        self.damage = "" if found is None else found.damage
        self._remains = Remains(self.folder, self.tag, site.orphans)
        self._grant = Grant(site, key, self._remains)
        spec = None if order is None else order.spec
        self._rescales = Rescales(site.node) if spec is None else Rescales(site.node, spec.rescale)
        self.stage = Stage.ORDERED if found is None else Stage.FOLLOWED
        if found is not None:
            # What a damaged folder does not tell is as it was ordered; a supervisor that lives is of this boot.
            self._same_boot = found.boot == site.reports.boot or (not found.boot and not start.is_free(found.folder))
            if found.start is None:
                self._grant.recover(order)
            else:
                membership, self._grace_s = found.start.membership, found.start.grace_s
                self._rescales.kind = found.start.rescale
                self._grant.found(
                    dict(found.start.gpu_env or {}), () if order is None else indices_of(order, site.node)
                )
        self.names = Names(key[0], key[1], membership, site.node)
        self.stale = False
        self._progress = Progress()
        self._told_at = -1e9
        self._stillness = Stillness(_log_of(order, found), clock())
        self._training = Training(clock())
        self._memory_mib: int | None = None
        self._verdict: tuple[Cause, str] | None = None
        self._supervisor: dict[str, Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._trainer_pid = 0
        self._pids: tuple[int, ...] = ()
        self._suspending = self._gate = self._opened = self._going = False
        self._asked: list[tuple[str, dict[str, object]]] = []
        self._more = asyncio.Event()
        self._overdue_at: float | None = None
        self._requests: asyncio.Queue[RequestMessage] = asyncio.Queue()

    # --- what is asked of it ---------------------------------------------------------------------------------------

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that it holds."""
        return self._grant.gpus

    @property
    def _leads(self) -> bool:
        # Of several nodes the first has the writer, or one rank of whose progress stands for all, and speaks of steps.
        return self._rescales.leads if self._rescales.elastic else self._grant.first

    def obey(self, message: RequestMessage) -> None:
        """Carries out an open, a rescale, a leave, a suspend or an end, once, in the order in which they come."""
        if message.request.kind in ("rescale", "leave"):
            try:
                if not self._rescales.take(message):
                    return
            except ValueError as error:
                log.error("%s: a membership that makes no sense: %s", self, error)
                return
            self._follows(message.request.membership if message.request.kind == "rescale" else 0)
        self._requests.put_nowait(message)

    def _follows(self, membership: int) -> None:
        """What is reported from here on is of this membership, if it is newer."""
        if membership > self.names.membership:
            self.names = replace(self.names, membership=membership)

    def adopt_grant(self, message: RequestMessage) -> None:
        """An open that an earlier agent took: these GPUs are its own, whether the gate was opened yet or not."""
        with contextlib.suppress(Refusal):  # its node may have lost some meanwhile
            self._grant.take(message)
            self._grant.claim()

    def suspend(self) -> None:
        """The agent's own wish: its lease has run out."""
        if not self._suspending:
            self._ask("suspend", self._grace_s, by="agent")

    def go(self, grace_s: float) -> None:
        """The node goes in so many seconds: whatever is to end this part does it by then, a suspend if nothing is."""
        if self._going:
            return
        self._going = True
        kind, grace_s = self.ending or "suspend", min(self._grace_s, grace_s)
        if kind == "suspend":
            self._ask(kind, grace_s, by="agent")
        else:
            self._ask(kind, grace_s)

    def drill(self, message: DrillMessage) -> None:
        """Its trainer is to be killed on purpose; once, though the supervisor may hear of it again."""
        if self.stage is Stage.FOLLOWED:
            body = {"saving": message.saving, "after_s": message.after_s, "within_s": message.within_s}
            self._ask("drill", None, id=message.id, **body)

    async def beside(self, terminal: bool) -> Beside | str:
        """Where a command beside its trainer runs, or why none can; that one is to run is reported."""
        if self.stage is not Stage.FOLLOWED or self.ending or self._suspending or not self._trainer_pid:
            return f"{self} has not started here yet, or is on its way out"
        try:
            where = await asyncio.to_thread(place, self.folder, self.tag, self._grant.shown)
        except (OSError, ValueError) as error:
            return f"{self}: {error}"
        if self._is_over() or self.ending:
            return f"{self} is on its way out"
        text = "a shell was opened beside it" if terminal else "a command was run beside it"
        self._site.reports.report(ev.Noted(**self.names.fields, text=text))
        return where

    async def kill(self) -> None:
        """Nothing of it may stay on a node that is not ours: its supervisor, with which its trainer goes."""
        await asyncio.to_thread(self._remains.end_supervisor, self._supervisor)
        await asyncio.to_thread(self._remains.end_within, KILL_S)

    def end_stale(self) -> None:
        """The daemon does not expect it: it ends, nothing more is reported of it, and its GPUs are dirty meanwhile."""
        if not self.stale:
            self.stale = True
            log.warning("%s is not expected any more, and is ended", self)
            self._site.gpus.stick(self.key, self.gpus, f"still held by {self}, which is stale")
            self._ask("end", STALE_GRACE_S)

    def __str__(self) -> str:
        return f"job {self.key[0]}.{self.key[1]}"

    def _ask(self, kind: str, grace_s: float | None, **body: object) -> None:
        if grace_s is not None:
            body["grace_s"] = grace_s
            due = boottime() + grace_s + HUNG_AFTER_S
            self._overdue_at = due if self._overdue_at is None else min(due, self._overdue_at)
        self._asked.append((kind, body))
        self._more.set()
        if kind in _GOES:
            self._site.shells.end(self.key, f"{self} {_GOES[kind]}")

    async def _obey_all(self) -> None:
        while True:
            message = await self._requests.get()
            request = message.request
            try:
                if request.kind == "open":
                    await self._open(message)
                elif request.kind == "rescale" and self._rescales.newest is not None:
                    self._ask("rescale", None, **self._rescales.newest.body)
                elif request.kind == "leave":
                    self._ask("leave", request.grace_s)
                elif request.kind == "suspend" and not self._suspending:
                    self._ask("suspend", request.grace_s, by="daemon")
                elif request.kind == "end":
                    self._ask("end", request.grace_s)
            except Exception as error:  # a request that cannot be carried out must not stop the ones behind it
                log.exception("%s of %s failed", request.kind, self)
                self._give_up(f"{request.kind} failed: {error}")

    async def _open(self, message: RequestMessage) -> None:
        if self._opened or self.stage is Stage.EXITED or self.stage is Stage.FREED:
            return
        try:
            nodes = self._grant.take(message)
            await self._grant.hold()
            self._ask("open", None, gpu_env=self._grant.environment(nodes))
        except Refusal as refusal:
            self._give_up(str(refusal))

    def _give_up(self, why: str) -> None:
        self._verdict = (Cause.INFRASTRUCTURE, why)
        self._ask("end", UNOPENED_GRACE_S)

    @property
    def ending(self) -> str:
        """What it was asked first that ends it, or ""."""
        return next((kind for kind, _ in self._asked if kind in ("suspend", "leave", "end")), "")

    def _is_over(self) -> bool:
        return self.stage is not Stage.FOLLOWED

    async def _end_if_overdue(self) -> None:
        if self._overdue_at is None or boottime() < self._overdue_at or self._supervisor is None:
            return
        self._overdue_at = boottime() + HUNG_AFTER_S
        log.error("the supervisor of %s hangs, and is killed", self)
        self._verdict = (Cause.INFRASTRUCTURE, "its supervisor hung, and was ended")
        await asyncio.to_thread(self._remains.end_supervisor, self._supervisor)
