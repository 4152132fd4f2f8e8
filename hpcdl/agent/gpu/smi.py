"""GPUs through `nvidia-smi`, for machines where NVML cannot be loaded.

Every command is two pure halves, argv and parse, with `run` between. Columns are found by their names in the header,
cells that are no number ([N/A], [Not Supported], [Unknown Error], ERR!) are None, and any text can be parsed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcdl.agent.gpu.device import Gpu, GpuSample, GpuSourceError, GpuState
from hpcdl.core.model.health import Health

FIELDS = (
    "index", "uuid", "pci.bus_id", "name", "memory.total", "memory.used", "utilization.gpu", "power.draw",
    "temperature.gpu",
)  # fmt: skip
MIG_FIELD = "mig.mode.current"  # drivers before 450 refuse a query that has it
HEALTH_FIELDS = ("ecc.errors.uncorrected.volatile.total", "retired_pages.pending")
APP_FIELDS = ("gpu_uuid", "pid")
INVALID_FIELD = "is not a valid field to query"
TIMEOUT_S = 20.0  # without persistence mode, a driver starts its GPUs anew for each command

BUS_ID = re.compile(r"(?<![0-9A-Fa-f])([0-9A-Fa-f]{2,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
NUMBER = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(?: ?(?:%|MiB|W|C))?", re.ASCII)
LOST_WORDS = ("is lost", "requires reset", "reset required", "fallen off the bus")
NO_HANDLE = "unable to determine the device handle"


@dataclass(frozen=True, slots=True)
class SmiRow:
    """One GPU's row: None where a cell is not readable. `bus` is normalised; `sample`: what was measured, without its
    processes; `lost`: a cell of the row says so."""

    index: int | None
    uuid: str | None
    bus: str | None
    name: str
    sample: GpuSample
    mig: bool = False
    lost: bool = False

    @property
    def mute(self) -> bool:
        """Whether nothing of the GPU could be measured."""
        return self.sample.memory_used_mib is None and self.sample.util is None and self.sample.temperature_c is None


@dataclass(frozen=True, slots=True)
class SmiReport:
    """What a --query-gpu printed: rows, and the lines that are none (errors, warnings), whole."""

    rows: tuple[SmiRow, ...]
    notes: tuple[str, ...]


SmiApp = tuple[str, int | None]
"""A compute process on a GPU: that one's UUID and its pid, None where it may not be read."""


@dataclass(frozen=True, slots=True)
class SmiOutput:
    """What a command did. `status` is None if it was not started or not finished in time; `text` then says why."""

    status: int | None
    text: str
    left: subprocess.Popen[str] | None = None  # killed, and still there: it hangs in the driver


def gpu_argv(program: str = "nvidia-smi", mig: bool = True, health: bool = False) -> list[str]:
    """The command that lists all GPUs and what they do; without `mig` and `health` for drivers that refuse these."""
    fields = [*FIELDS, *([MIG_FIELD] if mig else ()), *(HEALTH_FIELDS if health else ())]
    return [program, f"--query-gpu={','.join(fields)}", "--format=csv"]


def apps_argv(program: str = "nvidia-smi") -> list[str]:
    """The command that lists the compute processes on all GPUs."""
    return [program, f"--query-compute-apps={','.join(APP_FIELDS)}", "--format=csv"]


def parse_gpus(text: str) -> SmiReport:
    """What `gpu_argv` printed, stdout and stderr together. Never raises."""
    tables, notes = _tables(text, "uuid")
    rows = tuple(_row(cells) for cells in tables)
    return SmiReport(rows, notes)


def parse_apps(text: str) -> tuple[SmiApp, ...] | None:
    """What `apps_argv` printed; None if there is no table in it, or a process on a GPU that it does not name: then
    nothing is known of any GPU. Never raises."""
    rows, _ = _tables(text, "gpu_uuid")
    if not rows and not any(_cells(line)[:1] == ["gpu_uuid"] for line in text.splitlines()):
        return None
    apps = []
    for row in rows:
        uuid, pid = row.get("gpu_uuid", ""), _number(row.get("pid", ""))
        if not uuid.startswith(("GPU-", "MIG-")):
            return None
        apps.append((uuid, None if pid is None else int(pid)))
    return tuple(apps)


def bus_of(text: str) -> str | None:
    """The PCI address in a text; drivers write its domain with 3, 4 or 8 digits."""
    found = BUS_ID.search(text)
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain, 16):x}:{bus}:{device}.{function}".lower()


def run(argv: Sequence[str], timeout: float) -> SmiOutput:
    """Runs a command, stdout and stderr as one text. Past `timeout` seconds it is killed, and never waited for: a
    process that hangs in a driver does not die."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError as error:
        return SmiOutput(None, f"{argv[0]} cannot be started: {error.strerror}")
    try:
        text, _ = process.communicate(timeout=timeout)
        return SmiOutput(process.returncode, text)
    except subprocess.TimeoutExpired:
        process.kill()
    if process.stdout is not None:
        process.stdout.close()
    why = f"{argv[0]} did not answer within {timeout:g} s"
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return SmiOutput(None, why, process)
    return SmiOutput(None, why)


class SmiSource:
    """The GPUs that nvidia-smi sees, by UUID. Where MIG is on, processes are known by GPU, not by MIG device."""

    name = "nvidia-smi"

    def __init__(self, program: str = "nvidia-smi", timeout_s: float = TIMEOUT_S) -> None:
        """GpuSourceError if nvidia-smi shows no GPU."""
        self._program = program
        self._timeout_s = timeout_s
        self._mig = self._health = True
        self._hanging: subprocess.Popen[str] | None = None
        self._known: dict[str, Gpu] = {}
        self._bus: dict[str, str] = {}
        self._notes: tuple[str, ...] = ()
        output, report = self._query()
        if not self._known:
            said = "; ".join(report.notes[:3]) or output.text.strip()[:200] or "it said nothing"
            raise GpuSourceError(f"{program} (exit {output.status}): {said}")

    @property
    def detail(self) -> str:
        return "; ".join(self._notes[:3])

    def list(self) -> tuple[Gpu, ...]:
        return tuple(sorted(self._known.values(), key=lambda gpu: gpu.index))

    def sample(self) -> tuple[GpuSample, ...]:
        output, report = self._query()
        apps = None
        if report.rows:
            said = self._run(apps_argv(self._program))
            # A status above 0 is also that of a lost GPU among good ones; below, something killed it half way.
            apps = None if said.status is None or said.status < 0 else parse_apps(said.text)
        failed = output.text if output.status is None else ""
        return tuple(self._sample(gpu, report, apps, failed) for gpu in self.list())

    def close(self) -> None:
        self._reap()

    def _reap(self) -> None:
        if self._hanging is not None and self._hanging.poll() is not None:
            self._hanging = None

    def _run(self, argv: Sequence[str]) -> SmiOutput:
        self._reap()
        if self._hanging is not None:
            return SmiOutput(None, f"an earlier {self._program} (pid {self._hanging.pid}) still hangs in the driver")
        output = run(argv, self._timeout_s)
        self._hanging = output.left
        return output

    def _query(self) -> tuple[SmiOutput, SmiReport]:
        output = self._run(gpu_argv(self._program, self._mig, self._health))
        while (self._mig or self._health) and INVALID_FIELD in output.text:
            if self._mig and (MIG_FIELD in output.text or not self._health):  # it names the first that it does not know
                self._mig = False
            else:
                self._health = False
            output = self._run(gpu_argv(self._program, self._mig, self._health))
        report = parse_gpus("" if output.status is None else output.text)
        for row in report.rows:
            self._remember(row)
        mig = [f"MIG is on on GPU {row.index}: its use is not known" for row in report.rows if row.mig]
        self._notes = (*report.notes, *mig)
        return output, report

    def _remember(self, row: SmiRow) -> None:
        if row.uuid is None:
            return
        known = self._known.get(row.uuid)
        if known is None:
            taken = {gpu.index for gpu in self._known.values()}
            free = max(taken, default=-1) + 1
            known = Gpu(row.index if row.index is not None and row.index not in taken else free, row.uuid, "", 0)
        self._known[row.uuid] = replace(
            known, name=row.name or known.name, memory_mib=row.sample.memory_total_mib or known.memory_mib
        )
        if row.bus is not None:
            self._bus[row.uuid] = row.bus

    def _sample(self, gpu: Gpu, report: SmiReport, apps: tuple[SmiApp, ...] | None, failed: str) -> GpuSample:
        if failed:
            return GpuSample(gpu.uuid, state="unknown", detail=failed)
        bus = self._bus.get(gpu.uuid)
        row = next((row for row in report.rows if row.uuid == gpu.uuid), None)
        row = row or next((row for row in report.rows if row.uuid is None and bus is not None and row.bus == bus), None)
        notes = [note for note in report.notes if bus is not None and bus_of(note) == bus]
        if row is None or row.uuid is None or row.lost:
            state, detail = _absent(row, notes, report)
            return GpuSample(gpu.uuid, state=state, detail=detail)
        return replace(
            row.sample,
            pids=_pids(gpu.uuid, apps),
            state="unknown" if row.mute else "ok",
            detail="nvidia-smi could measure nothing" if row.mute else "MIG is on" if row.mig else "",
        )


def _absent(row: SmiRow | None, notes: Sequence[str], report: SmiReport) -> tuple[GpuState, str]:
    """What a GPU is that has no good row: lost only if nvidia-smi says so of this GPU, or answers well without it."""
    if notes:
        said = " ".join(notes).lower()
        return "lost" if NO_HANDLE in said or any(word in said for word in LOST_WORDS) else "unknown", notes[0][:200]
    if row is not None:
        return ("lost", "nvidia-smi: GPU is lost") if row.lost else ("unknown", "nvidia-smi does not say its UUID")
    if report.rows and not report.notes:
        return "lost", "nvidia-smi no longer lists it"
    return "unknown", f"nvidia-smi does not list it: {report.notes[0][:200] if report.notes else 'it said nothing'}"


def _pids(uuid: str, apps: tuple[SmiApp, ...] | None) -> tuple[int, ...] | None:
    if apps is None:
        return None
    pids = [pid for gpu, pid in apps if gpu == uuid]
    return None if None in pids else tuple(sorted({pid for pid in pids if pid is not None}))


def _tables(text: str, key: str) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """The rows under a header with a column `key`, by the columns' names without units; and all other lines."""
    columns: list[str] = []
    rows: list[dict[str, str]] = []
    notes: list[str] = []
    for line in text.splitlines():
        cells = _cells(line)
        names = [cell.split(" [")[0] for cell in cells]
        if key in names:
            columns = names
        elif columns and len(cells) == len(columns) and len(cells) > 1:
            rows.append(dict(zip(columns, cells, strict=True)))
        elif line.strip():
            notes.append(line.strip())
    return rows, tuple(notes)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _row(cells: dict[str, str]) -> SmiRow:
    named = cells.get("uuid", "")
    uuid = named if re.fullmatch(r"GPU-[0-9A-Za-z-]+", named) else None
    said = " ".join(cells.values()).lower()

    def whole(name: str) -> int | None:
        value = _number(cells.get(name, ""))
        return None if value is None else int(value)

    return SmiRow(
        index=whole("index"),
        uuid=uuid,
        bus=bus_of(cells.get("pci.bus_id", "")),
        name=_text(cells.get("name", "")),
        sample=GpuSample(
            uuid or "",
            whole("utilization.gpu"),
            whole("memory.used"),
            whole("memory.total"),
            _number(cells.get("power.draw", "")),
            whole("temperature.gpu"),
            health=Health(
                ecc_uncorrected=whole(HEALTH_FIELDS[0]),
                retired_pending={"Yes": True, "No": False}.get(cells.get(HEALTH_FIELDS[1], "")),
            ),
        ),
        mig=cells.get(MIG_FIELD) == "Enabled",
        lost=any(word in said for word in LOST_WORDS),
    )


def _number(cell: str) -> float | None:
    found = NUMBER.fullmatch(cell)
    return None if found is None else float(found.group(1))


def _text(cell: str) -> str:
    return "" if cell.startswith("[") or cell in ("N/A", "ERR!") else cell
