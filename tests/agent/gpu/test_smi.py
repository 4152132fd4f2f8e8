"""nvidia-smi: what its texts mean, and the source with a program of ours on its place."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hpcdl.agent.gpu.device import GpuSourceError, NoGpus
from hpcdl.agent.gpu.discovery import discover
from hpcdl.agent.gpu.smi import SmiSource, apps_argv, bus_of, gpu_argv, parse_apps, parse_gpus, run

RECORDINGS = Path(__file__).parents[2] / "recordings" / "nvidia-smi"
ZERO = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
ONE = "GPU-bbbbbbbb-0000-4000-8000-000000000001"


def recording(name: str) -> str:
    return (RECORDINGS / f"{name}.txt").read_text()


class Smi:
    """An `nvidia-smi` that answers with recordings, chosen anew before each sample, and notes its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "nvidia-smi"
        self.program.write_text(
            f"#!{sys.executable} -IS\n"
            "import os, sys\n"
            f"folder = {str(folder)!r}\n"
            "open(folder + '/argv', 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
            "kind = 'apps' if 'compute-apps' in sys.argv[1] else 'gpus'\n"
            "if kind == 'gpus' and 'mig.mode' not in sys.argv[1]: kind = 'plain'\n"
            "status, text = open(folder + '/' + kind).read().split('\\n', 1)\n"
            "sys.stdout.write(text)\n"
            "sys.exit(int(status))\n"
        )
        self.program.chmod(0o700)

    def says(self, gpus: str, apps: str = "apps-none", status: int = 0, plain: str = "without-mig-field") -> Smi:
        (self.folder / "gpus").write_text(f"{status}\n{recording(gpus)}")
        (self.folder / "apps").write_text(f"0\n{recording(apps)}")
        (self.folder / "plain").write_text(f"0\n{recording(plain)}")
        return self

    def source(self) -> SmiSource:
        return SmiSource(str(self.program))


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path)


def test_the_commands() -> None:
    assert gpu_argv()[0] == "nvidia-smi"
    assert gpu_argv()[1].endswith(",temperature.gpu,mig.mode.current")
    assert gpu_argv("/opt/nvidia-smi", mig=False)[1].endswith(",temperature.gpu")
    assert apps_argv() == ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv"]


def test_two_good_rows() -> None:
    report = parse_gpus(recording("two-gpus-busy-and-idle"))
    assert report.notes == ()
    busy, idle = report.rows
    assert (busy.index, busy.uuid, busy.name, busy.bus) == (0, ZERO, "NVIDIA H100 80GB HBM3", "0:00:09.0")
    assert (busy.sample.memory_total_mib, busy.sample.memory_used_mib, busy.sample.util) == (81559, 19818, 100)
    assert (busy.sample.power_w, busy.sample.temperature_c, busy.mig, busy.lost) == (631.95, 59, False, False)
    assert (idle.index, idle.sample.util, idle.sample.memory_used_mib) == (1, 0, 0)


def test_the_order_of_columns_and_the_units_do_not_matter() -> None:
    (row,) = parse_gpus(f"a warning\nuuid, temperature.gpu, utilization.gpu, new.field\n{ZERO}, 59, 7, x\n").rows
    assert (row.uuid, row.sample.temperature_c, row.sample.util, row.sample.memory_used_mib) == (ZERO, 59, 7, None)


def test_cells_that_are_no_number() -> None:
    power, memory = parse_gpus(recording("cells-without-numbers")).rows
    assert (power.sample.power_w, power.sample.util, power.sample.memory_used_mib, power.mute) == (None, 0, 593, False)
    none = memory.sample
    assert (none.power_w, none.util, none.memory_used_mib, none.temperature_c) == (None, None, None, 30)
    assert not memory.mute
    assert parse_gpus(recording("no-cell-with-a-number")).rows[0].mute
    (mig,) = parse_gpus(recording("mig-on")).rows
    assert (mig.sample.util, mig.sample.memory_used_mib, mig.mig) == (None, 11125, True)


def test_processes() -> None:
    assert parse_apps(recording("apps-three-on-one-gpu")) == tuple((ZERO, pid) for pid in (11327, 11328, 11345))
    assert parse_apps(recording("apps-none")) == ()
    assert parse_apps(recording("apps-pid-not-readable")) == ((ZERO, None), (ONE, 815))
    assert parse_apps(recording("apps-gpu-not-readable")) is None
    assert parse_apps(recording("driver-not-loaded")) is None
    assert parse_apps("") is None


@pytest.mark.parametrize("text", ["0000:24:00.0", "GPU0: 0000:24:00.0: x", "GPU0000:24:00.0", "000:24:00.0"])
def test_an_address_in_any_spelling(text: str) -> None:
    assert bus_of(text) == bus_of("00000000:24:00.0") == "0:24:00.0"


HEADER = recording("two-gpus-busy-and-idle").splitlines()[0]
CELL = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "ERR!", "[N/A]", "[GPU is lost]", "1e999", "٣", "²", "-1", "9" * 400, "1 MiB", ZERO, "inf"]),
)
LINE = st.one_of(
    st.text(max_size=80),
    st.lists(CELL, min_size=10, max_size=10).map(", ".join),
    st.lists(CELL, min_size=2, max_size=2).map(", ".join),
    st.sampled_from([HEADER, "gpu_uuid, pid", *recording("lost-line-alone").splitlines()]),
)


@given(st.lists(LINE, max_size=8).map("\n".join))
@example(f"{HEADER}\n{HEADER}")
@example("gpu_uuid")
@example("uuid\n\0")
def test_no_text_raises(text: str) -> None:
    report = parse_gpus(text)
    assert all(row.uuid is None or row.uuid.startswith("GPU-") for row in report.rows)
    assert len(report.rows) + len(report.notes) <= len(text.splitlines())
    apps = parse_apps(text)
    assert apps is None or all(pid is None or pid >= 0 for _, pid in apps)


def test_the_source(smi: Smi) -> None:
    source = smi.says("two-gpus-busy-and-idle", "apps-three-on-one-gpu").source()
    assert [(gpu.index, gpu.uuid, gpu.memory_mib) for gpu in source.list()] == [(0, ZERO, 81559), (1, ONE, 81559)]
    busy, idle = source.sample()
    assert (busy.state, busy.util, busy.pids) == ("ok", 100, (11327, 11328, 11345))
    assert (idle.state, idle.util, idle.pids) == ("ok", 0, ())
    smi.says("two-gpus-busy-and-idle", "apps-pid-not-readable")
    assert [sample.pids for sample in source.sample()] == [None, (815,)]
    smi.says("two-gpus-busy-and-idle", "apps-gpu-not-readable")
    assert [sample.pids for sample in source.sample()] == [None, None]
    source.close()


@pytest.mark.parametrize(
    "how",
    [
        "lost-line-before-good-row",
        "lost-line-after-good-row-unknown-error",
        "lost-line-without-blank",
        "lost-in-cells",
    ],
)
@pytest.mark.parametrize("status", [0, 15])
def test_a_lost_gpu_among_good_ones(smi: Smi, how: str, status: int) -> None:
    source = smi.says("good-with-24-and-25").source()
    before = source.list()
    smi.says(how, status=status)
    lost, good = source.sample()
    assert (lost.uuid, lost.state, lost.pids) == (ZERO, "lost", None)
    assert "GPU" in lost.detail
    assert (good.uuid, good.state, good.memory_used_mib, good.pids) == (ONE, "ok", 2, ())
    assert source.list() == before


def test_a_gpu_that_is_not_listed_is_lost_only_if_nothing_else_went_wrong(smi: Smi) -> None:
    source = smi.says("good-with-24-and-25").source()
    smi.says("lost-line-alone", status=15)
    assert [sample.state for sample in source.sample()] == ["lost", "unknown"]
    smi.says("driver-not-loaded", status=9)
    assert [sample.state for sample in source.sample()] == ["unknown", "unknown"]
    smi.says("no-cell-with-a-number")
    mute, gone = source.sample()
    assert (mute.state, mute.util) == ("unknown", None)
    assert (gone.state, gone.detail) == ("lost", "nvidia-smi no longer lists it")
    smi.says("good-with-24-and-25")
    assert [sample.state for sample in source.sample()] == ["ok", "ok"]


def test_mig_is_said(smi: Smi) -> None:
    source = smi.says("mig-on").source()
    assert source.detail == "MIG is on on GPU 0: its use is not known"
    assert [(sample.state, sample.detail) for sample in source.sample()] == [("ok", "MIG is on")]


def test_an_old_driver_is_asked_without_the_field_that_it_does_not_know(smi: Smi) -> None:
    source = smi.says("field-not-valid", status=2).source()
    assert [gpu.name for gpu in source.list()] == ["Tesla V100-SXM2-16GB"]
    assert [sample.state for sample in source.sample()] == ["ok"]
    asked = (smi.folder / "argv").read_text().splitlines()
    assert ["mig.mode" in line for line in asked] == [True, False, False, False]


def test_no_driver_is_no_source(smi: Smi) -> None:
    smi.says("driver-not-loaded", status=9)
    with pytest.raises(GpuSourceError, match="couldn't communicate with the NVIDIA driver"):
        smi.source()
    with pytest.raises(GpuSourceError, match="cannot be started"):
        SmiSource(str(smi.folder / "absent"))


def test_discovery(smi: Smi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    emulated = discover(2, tmp_path / "emulated")
    assert (emulated.name, len(emulated.list())) == ("emulated", 2)
    # A module that cannot be imported stands for a machine without NVML, should this one have a driver.
    monkeypatch.setitem(sys.modules, "pynvml", None)
    smi.says("two-gpus-busy-and-idle")
    monkeypatch.setenv("PATH", str(smi.folder))
    found = discover(None, tmp_path / "unused")
    assert (found.name, len(found.list())) == ("nvidia-smi", 2)
    smi.says("driver-not-loaded", status=9)
    none = discover(None, tmp_path / "unused")
    assert isinstance(none, NoGpus)
    assert "pynvml" in none.detail
    assert "NVIDIA driver" in none.detail
    monkeypatch.setenv("PATH", str(tmp_path / "unused"))
    assert discover(None, tmp_path / "unused").detail.endswith("nvidia-smi is not on PATH")
    assert (none.list(), none.sample()) == ((), ())
    assert not (tmp_path / "unused").exists()


def test_a_command_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    started = time.monotonic()
    output = run([sys.executable, "-IS", "-c", script], timeout=2.0)
    assert time.monotonic() - started < 60
    assert output.status is None
    assert "did not answer within 2 s" in output.text
    assert output.left is None
    if pid_file.exists():  # else this machine is so slow that it had not begun
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid_file.read_text()), 0)


def test_a_command_that_is_killed_says_nothing_of_processes(smi: Smi) -> None:
    source = smi.says("good-with-24-and-25").source()
    text = smi.program.read_text()
    smi.program.write_text(text.replace("sys.exit(int(status))", "sys.stdout.flush(); os.kill(os.getpid(), 9)"))
    assert [sample.pids for sample in source.sample()] == [None, None]
    assert run([str(smi.program), "--query-gpu"], 60).status == -signal.SIGKILL
