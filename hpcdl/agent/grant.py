"""The GPUs of one part: granted by the daemon, checked to be free, named to the trainer, and seen free after it.

Nothing is started on a GPU that something else holds, and none is released before it was seen free.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from hpcdl.agent import mps
from hpcdl.agent.context import AgentContext
from hpcdl.agent.gpus import Side
from hpcdl.agent.orphans import Remains
from hpcdl.agent.report_log import Key, boottime
from hpcdl.agent.start_request import StartRefusal, gpu_environment, nodes_and_gpus, nodes_environment
from hpcdl.agent.supervisor import processes
from hpcdl.agent.supervisor.resources import CPUS_VARIABLE
from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.job import Sharing
from hpcdl.wire.messages import RequestMessage

log = logging.getLogger("hpcdl.agent")

FREE_AT_ONCE_S = 2.0
"""Seconds for which a GPU that is granted may still be held by a program that is just ending."""

SHARE_VARIABLE = "HPCDL_SHARE"
"""How a trainer that shares its GPUs has them when it starts: a `Side`."""

DIRTY_AFTER_S = 30.0
"""Seconds after its exit from which on GPUs that an incarnation still holds are reported dirty."""


class Grant:
    """The GPUs of one part. `gpus`: UUIDs. `first`: whether this node is the first of those that the daemon named."""

    def __init__(
        self, site: AgentContext, key: Key, remains: Remains, share: Sharing | None, memory_mib: int | None = None
    ) -> None:
        """`share`: what its job agreed to. `memory_mib`: that it takes of each GPU at most; None: not said."""
        self._site = site
        self._share = share
        self._memory_mib = memory_mib
        self.side = Side.ALONE
        self._remains = remains
        self._key = key
        self.gpus: tuple[str, ...] = ()
        self.first = True

    def found(self, env: dict[str, str], indices: Sequence[int]) -> None:
        """A grant that an earlier agent took, by the trainer's environment. `indices`: by the daemon's request."""
        self.gpus = tuple(uuid for uuid in env.get("HPCDL_GPUS", "").split(",") if uuid)
        self.side = _side_named(env.get(SHARE_VARIABLE, ""))
        if self.side is Side.BACKGROUND:
            self.side = self._side(Role.BACKGROUND)
        self.first = env.get("HPCDL_NODE_RANK", "0") == "0"
        self._site.gpus.claim(self._key, self.gpus, tuple(indices), self.side)

    def recover(self, order: RequestMessage | None) -> None:
        """A grant that the run folder does not name any more: as it was ordered, else as its processes have it."""
        try:
            if order is None:
                raise StartRefusal("nothing is known of it")
            self.take(order)
        except StartRefusal:
            for process in processes.tagged(self._site.start_tag(self._key)):
                self.gpus = tuple(filter(None, (processes.variable(process.pid, "HPCDL_GPUS") or "").split(",")))
                self.side = _side_named(processes.variable(process.pid, SHARE_VARIABLE) or "")
                if self.gpus:
                    break
        self.claim()

    def take(self, message: RequestMessage) -> tuple[str, ...]:
        """Which GPUs the request names, and the nodes of the job. Raises StartRefusal."""
        nodes, indices = nodes_and_gpus(message, self._site.node)
        try:
            self.gpus = self._site.gpus.meant(indices)
        except ValueError as error:
            raise StartRefusal(str(error)) from None
        self.first = nodes[0] == self._site.node
        placement = message.request.placement
        self.side = self._side(Role.PRIMARY if placement is None else placement.role)
        return nodes

    def _side(self, role: Role) -> Side:
        """`role`: the one that it was started in."""
        if role is Role.BACKGROUND and "role" not in self._site.reports.requests.get(self._key, {}):
            return Side.BACKGROUND
        return Side.FOREGROUND if self._share is not None and self._share.as_foreground else Side.ALONE

    def promote(self) -> None:
        """It is no background any more: who was the foreground of its GPUs has left them."""
        self.side = self._side(Role.PRIMARY)
        self._site.gpus.promote(self._key, self.side)

    def claim(self) -> None:
        """Notes the GPUs as its own, whatever holds them."""
        self._site.gpus.claim(self._key, self.gpus, side=self.side)

    async def hold(self) -> None:
        """Claims its GPUs, which nothing else may hold. Raises StartRefusal, and then they are dirty."""
        gpus, until, pause = self._site.gpus, boottime() + FREE_AT_ONCE_S, 0.02
        while True:
            conflict = gpus.claim(self._key, self.gpus, side=self.side)
            found = await gpus.in_the_way(self.gpus, self._site.start_tag(self._key), self._partners())
            if conflict is None and not found:
                return
            if boottime() >= until:
                gpus.found_held(found)
                gpus.release(self._key)
                self.gpus = ()
                raise StartRefusal(conflict or "; ".join(found.values()))
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _partners(self) -> list[str]:
        """The tags of those that share GPUs with it."""
        return [self._site.start_tag(key) for key in self._site.gpus.partners(self._key)]

    def environment(self, nodes: Sequence[str], cpus: int | None = None) -> dict[str, str]:
        """The variables that name the trainer the GPUs that it has from now on, and the processors that come with them,
        or `cpus` of them. Raises StartRefusal."""
        try:
            shown = self._site.gpus.shown(self.gpus)
        except ValueError as error:
            raise StartRefusal(str(error)) from None
        self._site.grants.granted(self._key, self.gpus, self.side)
        bound = ",".join(map(str, self._site.gpus.processors(self.gpus, cpus)))
        processors = {CPUS_VARIABLE: bound} if bound else {}
        shares = {} if self.side is Side.ALONE else {SHARE_VARIABLE: self.side.value}
        shares |= mps.client_environment(self._site.settings, self.side, len(self.gpus), self._memory_mib)
        return gpu_environment(self.gpus, shown) | nodes_environment(nodes, self._site.node) | processors | shares

    @property
    def shown(self) -> dict[str, str]:
        """The variables that name them to a process beside the trainer. Raises ValueError for a GPU that is gone."""
        shares = {} if self.side is Side.ALONE else {SHARE_VARIABLE: self.side.value}
        return gpu_environment(self.gpus, self._site.gpus.shown(self.gpus)) | shares

    async def until_free(self, who: str, stale: Callable[[], bool]) -> None:
        """Returns once no process of `who` is left and nothing of it holds the GPUs; then they are nobody's.

        `stale`: the daemon does not know of it any more; why its GPUs are dirty has been said.
        """
        gpus, began, pause, stuck = self._site.gpus, boottime(), 0.02, ""
        while left := await self._left():
            if boottime() - began > DIRTY_AFTER_S and stuck != left and not stale():
                stuck = left
                log.warning("%s has ended and its GPUs are not free: %s", who, left)
                gpus.stick(self._key, self.gpus, f"{who} has ended, but {left}")
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, 2.0 if stuck else 0.5)
        self._site.grants.freed(self._key, self.gpus)
        gpus.release(self._key)
        gpus.unstick(self._key)
        gpus.judge(self.gpus)  # whoever else is on them is reported before they are free to be granted

    async def _left(self) -> str:
        """What of it is still there, in words, or ""."""
        tag = self._site.start_tag(self._key)
        left = await asyncio.to_thread(self._remains.find)
        if left:
            await asyncio.to_thread(self._remains.end)
        found = [f"process {processes.described(each.pid)}" for each in left]
        found += await self._site.gpus.held_by(self.gpus, tag, self._partners())
        return ", ".join(found[:20])


def _side_named(text: str) -> Side:
    return Side(text) if text in (Side.FOREGROUND.value, Side.BACKGROUND.value) else Side.ALONE
