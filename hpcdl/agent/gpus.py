"""The node's GPUs as the agent answers for them: which may be granted, which are lost or dirty, and what they do.

A GPU is dirty while something holds it that should not: processes that an attempt left, or somebody else's. It is never
reported free because somebody said so, only after it was looked at. Here GPUs are their UUIDs, which stay; the daemon
names them by the indices of the last inventory. The sources that look are in gpu/, a part's GPUs in grant.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from hpcdl.agent import processors
from hpcdl.agent.emulation import Load, shown, together
from hpcdl.agent.gpu.device import Gpu, GpuSample, GpuSource, GpuState
from hpcdl.agent.gpu.visible import cuda_visible_devices, visible
from hpcdl.agent.report_log import Key, ReportLog, boottime
from hpcdl.agent.supervisor.processes import boot_id, described, matches, process_of
from hpcdl.core.model.events import GpuChanged, GpuFaulted
from hpcdl.core.model.health import ECC, FaultAction, Health, fault_of
from hpcdl.core.model.world import GpuInfo
from hpcdl.wire.messages import GpuLine
from hpcdl.wire.private_files import NotPrivate, open_private

log = logging.getLogger("hpcdl.agent")

OK, LOST, DIRTY = "ok", "lost", "dirty"

LOOK_S = 10.0
"""Seconds that the report of an exit waits for a fresh look at its GPUs."""

UNKNOWN: GpuState = "unknown"

EMULATED = "emulated"

RESIDENT = frozenset({"Xorg", "Xwayland", "gnome-shell", "nvidia-persiste", "nvidia-cuda-mps"})
"""Programs that hold a GPU for as long as the machine runs, and that others share it with (names cut to 15 bytes)."""


class Side(Enum):
    """How an attempt has its GPUs: alone; with a background beside it, if one comes; or as such a background."""

    ALONE = "alone"
    FOREGROUND = "foreground"
    BACKGROUND = "background"

    def beside(self, other: Side) -> bool:
        """Whether the two may be on one GPU."""
        return {self, other} == {Side.FOREGROUND, Side.BACKGROUND}


class Gpus:
    """The GPUs of this node, and who holds them. All methods belong to the event loop's thread; the source is asked in
    another one, once at a time."""

    def __init__(self, source: GpuSource, mask: str | None, node: str, reports: ReportLog) -> None:
        """`mask`: the agent's own CUDA_VISIBLE_DEVICES; emulated GPUs are not CUDA's, and not masked by it."""
        self._source = source
        self._mask = None if source.name == EMULATED else mask
        self._node = node
        self._reports = reports
        self._asking = asyncio.Lock()
        self._gpus: dict[str, Gpu] = {}
        self._samples: dict[str, GpuSample] = {}
        self._states: dict[str, tuple[str, str]] = {}
        self._holders: dict[str, tuple[Key, int]] = {}
        self._backgrounds: dict[str, tuple[Key, int]] = {}
        self._sides: dict[Key, Side] = {}
        self._stuck: dict[str, dict[Key, str]] = {}
        self._announced: dict[int, str] | None = None
        self._faults: dict[str, Faults] = {}
        self._unreported: dict[str, tuple[int, ...]] = {}

    @property
    def emulated(self) -> bool:
        """Whether there are no real ones here."""
        return self._source.name == EMULATED

    @property
    def renumbered(self) -> bool:
        """An index is not the GPU any more that the inventory said (one fell off, or came back): announce again."""
        return self._announced is not None and self._announced != self._numbers()

    def _numbers(self) -> dict[int, str]:
        return {gpu.index: gpu.uuid for gpu in self._gpus.values()}

    @property
    def number(self) -> int:
        """How many this node has."""
        return len(self._gpus)

    def _number(self, uuid: str) -> int | None:
        """The index by which the daemon knows a GPU."""
        known = self._numbers() if self._announced is None else self._announced
        return next((index for index, each in known.items() if each == uuid), None)

    def _name(self, uuid: str) -> str:
        number = self._number(uuid)
        return f"GPU {uuid}" if number is None else f"GPU {number}"

    # --- grants ----------------------------------------------------------------------------------------------------

    def meant(self, indices: Iterable[int]) -> tuple[str, ...]:
        """The UUIDs of the GPUs that the daemon means. Raises ValueError for one that this node does not have."""
        known = self._numbers() if self._announced is None else self._announced
        found = []
        for index in indices:
            if index not in known:
                raise ValueError(f"{self._node} has no GPU {index}")
            found.append(known[index])
        return tuple(found)

    def shown(self, uuids: Iterable[str]) -> str:
        """CUDA_VISIBLE_DEVICES. Raises ValueError for a GPU that is gone."""
        gpus = []
        for uuid in uuids:
            if uuid not in self._gpus:
                raise ValueError(f"{self._node} has no GPU {uuid} any more")
            gpus.append(self._gpus[uuid])
        return cuda_visible_devices(gpus)

    def processors(self, uuids: Sequence[str], wanted: int | None) -> tuple[int, ...]:
        """Those that a job with these GPUs is bound to, () for none. `wanted`: how many, None: the GPUs' part."""
        if wanted is None and self.emulated:
            return ()  # several emulated nodes may share one machine, and know nothing of each other
        near = {uuid: gpu.cpus for uuid, gpu in self._gpus.items()}
        return processors.choose(
            uuids, near, processors.usable(), near.keys() - self._holders.keys() - self._backgrounds.keys(), wanted
        )

    def claim(self, key: Key, uuids: Sequence[str], indices: Sequence[int] = (), side: Side = Side.ALONE) -> str | None:
        """Notes that the incarnation holds these GPUs; returns why it may not, else None.

        `indices`: those by which they were granted, where they are others than now.
        """
        for uuid in uuids:
            for holder in self._on(uuid):
                if holder[0] != key and not side.beside(self._sides[holder[0]]):
                    return f"{self._name(uuid)} is still held by job {holder[0][0]}.{holder[0][1]}"
        granted = indices if len(indices) == len(uuids) else [self._number(uuid) for uuid in uuids]
        if uuids:
            self._sides.setdefault(key, side)
        there = self._backgrounds if side is Side.BACKGROUND else self._holders
        for uuid, index in zip(uuids, granted, strict=True):
            there.setdefault(uuid, (key, -1 if index is None else index))
        return None

    def _on(self, uuid: str) -> list[tuple[Key, int]]:
        """Who holds the GPU, with the index by which it was granted: the foreground, and a background beside it."""
        return [each for there in (self._holders, self._backgrounds) if (each := there.get(uuid)) is not None]

    def partners(self, key: Key) -> frozenset[Key]:
        """Who else is on the GPUs of an incarnation, as all of them agreed."""
        mine = [uuid for uuid in (*self._holders, *self._backgrounds) if key in (each[0] for each in self._on(uuid))]
        return frozenset(each[0] for uuid in mine for each in self._on(uuid)) - {key}

    @property
    def pairs(self) -> tuple[tuple[str, Key, Key], ...]:
        """The UUID of each GPU that two incarnations share, its foreground and its background."""
        return tuple(
            (uuid, holder[0], self._backgrounds[uuid][0])
            for uuid, holder in self._holders.items()
            if uuid in self._backgrounds
        )

    def promote(self, key: Key, side: Side) -> None:
        """A background is alone on its GPUs, and their holder from here on."""
        for uuid in [
            uuid for uuid, holder in self._backgrounds.items() if holder[0] == key and uuid not in self._holders
        ]:
            self._holders[uuid] = self._backgrounds.pop(uuid)
            self._sides[key] = side

    def release(self, key: Key) -> None:
        """The incarnation is gone, and its GPUs were seen free."""
        for there in (self._holders, self._backgrounds):
            for uuid in [uuid for uuid, holder in there.items() if holder[0] == key]:
                del there[uuid]
        self._sides.pop(key, None)

    async def in_the_way(self, uuids: Iterable[str], own_tag: str, partners: Collection[str] = ()) -> dict[str, str]:
        """What makes GPUs impossible to grant now: by UUID, which and why. `partners`: the tags of those that share
        them."""
        await self._ask()
        found = {}
        for uuid in uuids:
            sample = self._samples.get(uuid)
            if uuid not in self._gpus:
                why = "there is no such GPU"
            elif sample is not None and sample.state != OK:
                why = sample.detail or sample.state
            else:
                why = self._others(sample, (own_tag, *partners))
            if why:
                found[uuid] = f"{self._name(uuid)}: {why}"
        return found

    async def held_by(self, uuids: Iterable[str], tag: str, partners: Collection[str] = ()) -> list[str]:
        """The processes of an incarnation, by its tag, that GPUs still name; of emulated ones whoever has the lock, but
        for `partners`, the tags of those that share the GPUs with it."""
        if not uuids:
            return []
        await self._ask()
        found = []
        for uuid in uuids:
            sample = self._samples.get(uuid) if uuid in self._gpus else None
            if sample is None or sample.state == LOST:
                continue  # of one that is lost nothing is left to hold; of one without samples only the tags are known
            if sample.state != OK:
                found.append(f"{self._name(uuid)} cannot be seen: {sample.detail}")
            if self.emulated and sample.pids is None:
                found.append(f"{self._name(uuid)}: {sample.detail}")
            for pid in sample.pids or ():
                process = process_of(pid)
                if process is not None and any(matches(process.tag, each) for each in partners):
                    continue
                if self.emulated or (process is not None and matches(process.tag, tag)):
                    found.append(f"{self._name(uuid)}: process {described(pid)}")
        return found

    def _others(self, sample: GpuSample | None, own_tags: Collection[str]) -> str:
        """Processes on a GPU besides those with such a tag, or "" (also where the GPU does not say)."""
        if sample is None or sample.state != OK:
            return ""
        if sample.pids is None:
            return sample.detail if self.emulated else ""
        pids = []
        for pid in sample.pids:
            process = process_of(pid)
            ours = process is not None and any(matches(process.tag, tag) for tag in own_tags)
            if not ours and (self.emulated or _program(pid) not in RESIDENT):
                pids.append(described(pid))
        return f"held by process {', '.join(pids)}" if pids else ""

    # --- states ----------------------------------------------------------------------------------------------------

    def stick(self, key: Key, uuids: Iterable[str], detail: str) -> None:
        """The incarnation should have left these and has not: dirty until `unstick`."""
        for uuid in uuids:
            self._stuck.setdefault(uuid, {})[key] = detail
        self.judge(uuids)

    def unstick(self, key: Key) -> None:
        """The attempt has left its GPUs."""
        self.judge([uuid for uuid, by in self._stuck.items() if by.pop(key, None) is not None])

    def found_held(self, found: dict[str, str]) -> None:
        """What was in the way of a grant: dirty (or lost) at least until the next refresh."""
        for uuid, why in found.items():
            if uuid in self._gpus:
                self._set(uuid, LOST if self._is_lost(uuid) else DIRTY, why)

    async def lost(self, uuids: Sequence[str]) -> str:
        """Looks again, and reports what changed; then those of these that are lost or had a fault, in words, or ""."""
        looking = asyncio.create_task(self.refresh())
        await asyncio.wait({looking}, timeout=LOOK_S)  # a driver that hangs is not waited for: nothing is known then
        found = [uuid for uuid in uuids if self._is_lost(uuid)]
        if found:
            return ", ".join(f"{self._name(uuid)} ({uuid}) is lost: {self._samples[uuid].detail}" for uuid in found)
        blamed = {uuid: self._faults[uuid].blamed(boottime()) for uuid in uuids if uuid in self._faults}
        return ", ".join(f"{self._name(uuid)} ({uuid}) had a fault: {why}" for uuid, why in blamed.items() if why)

    async def refresh(self) -> None:
        """Looks at all GPUs again, and reports those whose state changed."""
        await self._ask()
        self.judge(self._gpus)
        self._report_faults()

    def _report_faults(self) -> None:
        """Reports what is news of the GPUs' health, once the daemon knows them by their numbers."""
        if self._announced is None or self.renumbered:
            return
        for uuid in self._gpus:
            xids = self._unreported.pop(uuid, ())
            sample, index = self._samples.get(uuid), self._number(uuid)
            if sample is None or index is None:
                continue
            for fault, detail in self._faults.setdefault(uuid, Faults()).look(sample.health, xids, boottime()):
                log.warning("GPU %d: %s, %s", index, fault, detail)
                self._reports.report(GpuFaulted(self._node, index, fault, detail))

    def judge(self, uuids: Iterable[str]) -> None:
        """What is known of these by now; those whose state changed are reported."""
        for uuid in list(uuids):
            gpu = self._gpus.get(uuid)
            if gpu is None:
                continue
            sample, holders = self._samples.get(uuid), self._on(uuid)
            moved = next((holder for holder in holders if holder[1] != gpu.index), None)
            if sample is not None and sample.state == LOST:
                self._set(uuid, LOST, sample.detail)
            elif stuck := self._stuck.get(uuid):
                self._set(uuid, DIRTY, "; ".join(stuck.values()))
            elif moved is not None:
                # The daemon has noted another index as held; nobody else may be given this one meanwhile.
                (job, incarnation), index = moved
                self._set(uuid, DIRTY, f"held by job {job}.{incarnation}, which was given it as GPU {index}")
            elif not holders and (others := self._others(sample, ())):
                self._set(uuid, DIRTY, others)
            elif sample is None or sample.state == OK:
                self._set(uuid, OK, "")

    def _is_lost(self, uuid: str) -> bool:
        sample = self._samples.get(uuid)
        return sample is not None and sample.state == LOST

    def _set(self, uuid: str, state: str, detail: str) -> None:
        old = self._states.get(uuid, (OK, ""))
        self._states[uuid] = (state, detail)
        # The inventory says how things are; from then on changes are reported, by the indices that it gave.
        index = self._number(uuid)
        if index is None or self._announced is None or self.renumbered:
            return
        if old[0] != state or (state == DIRTY and old[1] != detail):
            log.info("GPU %d is %s %s", index, state, detail)
            self._reports.report(GpuChanged(self._node, index, state, detail))

    # --- for the daemon --------------------------------------------------------------------------------------------

    def inventory(self) -> tuple[GpuInfo, ...]:
        """Every GPU as it was seen last, by its index now."""
        self._announced = self._numbers()
        self.judge(self._gpus)
        waiting = any(entry.kind == GpuChanged.__name__ for entry in self._reports.entries.values())
        found = []
        for index, uuid in sorted(self._announced.items()):
            gpu, (state, detail) = self._gpus[uuid], self._states.get(uuid, (OK, ""))
            far = dict(gpu.distances)
            distances = tuple((at, far[other]) for at, other in sorted(self._announced.items()) if other in far)
            found.append(GpuInfo(index, uuid, gpu.name, gpu.memory_mib, state, detail, distances))
            if waiting:  # what is reported after this inventory may be older than it: how things are has the last word
                self._reports.report(GpuChanged(self._node, index, state, detail))
        return tuple(found)

    def lines(self, loads: Mapping[Key, Load], tag: Callable[[Key], str]) -> tuple[GpuLine, ...]:
        """The newest samples; emulated GPUs show what those do that hold them, by these. `tag`: of an attempt."""
        pairs = {uuid: keys for uuid, *keys in self.pairs}
        found = []
        for index, uuid in sorted(self._numbers().items()):
            sample = self._samples.get(uuid)
            if sample is None:
                found.append(GpuLine(index, None, None, None))
            else:
                if self.emulated and (holders := self._on(uuid)):
                    sample = shown(sample, together([loads.get(holder[0]) for holder in holders]))
                known = self._faults.get(uuid)
                health = sample.health if known is None else known.shown(sample.health)
                shares = _shares(sample, {key: tag(key) for key in pairs.get(uuid, ())})
                found.append(GpuLine(index, sample.util, sample.memory_used_mib, sample.power_w, health, shares))
        return tuple(found)

    async def _ask(self) -> None:
        async with self._asking:
            try:
                gpus, samples = await asyncio.to_thread(self._look)
            except Exception:  # a source must not raise, and if it does the agent lives on with what it knew
                log.exception("the GPU source %s failed", self._source.name)
                why = f"the GPU source {self._source.name} failed"
                self._samples = {
                    gpu.uuid: GpuSample(gpu.uuid, state=UNKNOWN, detail=why) for gpu in self._gpus.values()
                }
                return
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._samples = {sample.uuid: sample for sample in samples}
        for sample in samples:  # each Xid is in one sample only
            if sample.xids:
                self._unreported[sample.uuid] = (*self._unreported.get(sample.uuid, ()), *sample.xids)

    def _look(self) -> tuple[Sequence[Gpu], Sequence[GpuSample]]:
        samples = self._source.sample()
        return visible(self._source.list(), self._mask), samples


def _shares(sample: GpuSample, tags: Mapping[Key, str]) -> tuple[tuple[int, int, int], ...]:
    """What each of these attempts has of a GPU's memory, by its processes there; nothing of one without any."""
    if not tags:
        return ()
    taken: dict[Key, int] = {}
    for pid, mib in sample.process_mib:
        process = process_of(pid)
        for key, tag in tags.items():
            if process is not None and matches(process.tag, tag):
                taken[key] = taken.get(key, 0) + mib
    return tuple((*key, mib) for key, mib in taken.items())


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


AGAIN_S = 1800.0
"""A condition that holds is reported again so often, so that a GPU that is avoided for it stays so while it lasts."""

KEPT = 8
"""Xids that are shown of a GPU."""

BLAMED_S = 120.0
"""A trainer that fails so soon after a fault of its GPU was not at fault itself."""


class Faults:
    """What changes in the health of one GPU between two looks, and is worth a report. Pure, but for its memory.

    What was so before this agent began is shown, but no reason to avoid a GPU, unless its memory cannot be repaired.
    """

    def __init__(self) -> None:
        self._xids: tuple[int, ...] = ()
        self._ecc: int | None = None
        self._reported_at: dict[str, float] = {}
        self._bad: tuple[float, str] | None = None

    def look(self, health: Health | None, xids: Iterable[int], now: float) -> list[tuple[str, str]]:
        """What is news: faults, as `health.fault_of` knows them, and how each was seen. `xids`: since the last look."""
        found = []
        for number in xids:
            self._xids = (*self._xids, number)[-KEPT:]
            if fault_of(f"xid {number}") is not None:
                found.append((f"xid {number}", "reported by the driver"))
        if health is not None:
            errors = health.ecc_uncorrected
            if errors is not None and self._ecc is not None and errors > self._ecc:
                found.append((ECC, f"{errors} uncorrectable errors, {self._ecc} before"))
            self._ecc = errors if errors is not None else self._ecc
            held = health.conditions
            for name in held:
                if now - self._reported_at.get(name, -AGAIN_S) >= AGAIN_S:
                    self._reported_at[name] = now
                    found.append((name, "reported by the driver"))
            self._reported_at = {name: at for name, at in self._reported_at.items() if name in held}
        for fault, _ in found:
            known = fault_of(fault)
            if known is not None and known.action is not FaultAction.NOTE:
                self._bad = now, f"{fault}: {known.said}"
        return found

    def shown(self, health: Health | None) -> Health | None:
        """Its health for the daemon: with the Xids that were seen here."""
        if health is None:
            return Health(xids=self._xids) if self._xids else None
        return replace(health, xids=self._xids)

    def blamed(self, now: float) -> str:
        """The fault that may have ended a trainer just now, or ""."""
        return self._bad[1] if self._bad is not None and now - self._bad[0] < BLAMED_S else ""


NAME = "grants.jsonl"

LIMIT, WAITING_LIMIT = 1 << 20, 1 << 16

GRANTED, FREED = "granted", "freed"


class Grants:
    """grants.jsonl in the agent's folder: which attempt had which GPU, and when. No program reads it, only people do.

    Lines are written before a supervisor gets its GPUs, and when they were seen free. Not synced: what a crash of the
    machine costs is no loss. While the disk is full, or the file is not ours, lines wait in memory; too many of them
    are dropped. A large file is put aside as grants.jsonl.1.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / NAME
        self._waiting = b""

    def granted(self, key: Key, uuids: Sequence[str], side: Side = Side.ALONE) -> None:
        """These are about to be the attempt's own; again and again for the same is one grant."""
        self._write(GRANTED, key, uuids, {} if side is Side.ALONE else {"share": side.value})

    def freed(self, key: Key, uuids: Sequence[str | None] = (None,)) -> None:
        """Nothing of the incarnation is left, and these were seen without it; None: whatever it had."""
        self._write(FREED, key, uuids)

    def _write(self, what: str, key: Key, uuids: Sequence[str | None], more: Mapping[str, str] | None = None) -> None:
        moment = {"boot": round(boottime(), 3), "boot_id": boot_id()}
        lines = [
            json.dumps({**moment, "uuid": uuid, "job": key[0], "incarnation": key[1], "what": what, **(more or {})})
            for uuid in uuids
        ]
        self._waiting += "".join(f"{line}\n" for line in lines).encode()
        try:
            self._append()
        except (OSError, NotPrivate) as error:
            log.warning("%s: %s", self._path, error)
            if len(self._waiting) > WAITING_LIMIT:
                self._waiting = b"\n"

    def _append(self) -> None:
        if not self._waiting:
            return
        file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if os.fstat(file).st_size > LIMIT:
                os.replace(self._path, self._path.with_name(f"{NAME}.1"))
                os.close(file)
                file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            while self._waiting:
                self._waiting = self._waiting[os.write(file, self._waiting) :]
        finally:
            os.close(file)
