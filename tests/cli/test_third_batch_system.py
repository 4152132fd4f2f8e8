"""A batch system that hpcdl does not know: its package, which is this file, and one line in the table of names.

Nothing of hpcdl/ is changed or replaced: what it does for Slurm and LSF it does for this one.
"""

import ast
import os
import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from hpcdl.agent.departure import end_signals
from hpcdl.agent.emulation import granted
from hpcdl.agent.start_request import scrubbed
from hpcdl.allocation.chain import of_a_chain, script_of, submit_next
from hpcdl.allocation.detect import detect, find_system
from hpcdl.allocation.run import CannotRun, find_allocation, without_gpus
from hpcdl.batch.adapter import (
    AdapterSettings,
    Allocation,
    BatchAdapter,
    Capabilities,
    CommandRunner,
    Completed,
    IdleNodes,
    PilotScript,
)
from hpcdl.batch.options import VALUE, BatchOptions, IgnoredOption, IndexArray, Reason, WrittenOption, option_table
from hpcdl.batch.script import INDEX, BatchDependency, BatchScript, SubmitCommand, read_file
from hpcdl.batch.site import SiteError, load_site, read_site
from hpcdl.batch.system import BatchError, BatchSystem, system_named
from hpcdl.config.layers import BATCH_SYSTEMS
from hpcdl.core.model.pilot import BatchJob, BatchState, Hole, PendingBatchJob, PilotSpec
from tests.cli.conftest import Run as Hpcdl
from tests.cli.fake import FakeDaemon
from tests.daemon.test_batch import Scene
from tests.support.wrapping import ROOT, specs

SPEC = PilotSpec(1, 600.0, "idle", 4)
JOB = """#!/bin/bash
#PBS -N net -l select=2:ngpus=4
#PBS -l walltime=01:00:00 -W depend=afterok:7
#PBS -J 0-3
python train.py
"""


# --- the package -----------------------------------------------------------------------------------------------------


class PbsAdapter:
    """Talks with a PBS of two nodes that is only these lists."""

    kind = "pbs"

    def __init__(self, here: AdapterSettings) -> None:
        self.here = here
        self.jobs: dict[str, BatchJob] = {}

    def capabilities(self) -> Capabilities:
        return Capabilities(self.kind, "23.1", False, queues=("idle",), not_preempted={"idle": ""})

    def allocation(self, environ: Mapping[str, str]) -> Allocation | None:
        if not SYSTEM.inside(environ):
            return None
        return Allocation(self.kind, environ["PBS_JOBID"], tuple(environ.get("PBS_NODES", "").split()), 0)

    def holes(self, now: float, own: Collection[str]) -> tuple[Hole, ...]:
        return (Hole("idle", 2, ("p1", "p2"), 4, until=now + 3600, why="batch job 9 is expected"),)

    def idle_nodes(self) -> IdleNodes:
        return IdleNodes(frozenset({"p1", "p2"}), 2)

    def waiting(self, own: Collection[str]) -> tuple[PendingBatchJob, ...]:
        return ()

    def submit(self, spec: PilotSpec, script: PilotScript) -> str:
        self.jobs["101"] = BatchJob("101", BatchState.PENDING, script.mark)
        return "101"

    def poll(self, ids: Collection[str]) -> dict[str, BatchJob]:
        return {each: self.jobs.get(each, BatchJob(each, BatchState.MISSING)) for each in ids}

    confirm = poll

    def marked(self, prefix: str) -> tuple[BatchJob, ...]:
        return tuple(job for job in self.jobs.values() if job.mark.startswith(prefix))

    def cancel(self, ids: Collection[str]) -> None:
        for each in ids:
            self.jobs[each] = replace(self.jobs[each], state=BatchState.ENDED)

    def signal(self, batch_id: str, name: str) -> None:
        raise BatchError("qsig: no such job")

    def launch(self, allocation: Allocation, node: str, argv: Sequence[str]) -> tuple[str, ...]:
        return ("pbsdsh", "-n", node, "--", *argv)

    def topology(self, nodes: Collection[str]) -> dict[str, tuple[str, ...]]:
        return {}


class PbsSystem(BatchSystem):
    """PBS, as far as these tests need it."""

    name = "pbs"
    title = "PBS"
    commands = ("qstat", "qsub")
    job_variable = "PBS_JOBID"
    cluster_variable = "PBS_SERVER"
    job_variables = re.compile("PBS_.*")
    hidden_variables = re.compile("PBS_.*")
    gpu_lists = ("PBS_GPUS",)
    job_script = "jobscripts/hpcdl.pbs"
    submit_line = "qsub jobscripts/hpcdl.pbs"
    gpu_line = "#PBS -l ngpus=N"
    account_options = '["-A", "PROJECT"]'
    site_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {"chunk": ("vnode", "host")}
    end_signals: ClassVar[Mapping[signal.Signals, str]] = {signal.SIGPWR: "qdel"}
    submit_name = "qsub"

    def adapter(self, here: AdapterSettings) -> BatchAdapter:
        return PbsAdapter(here)

    def submit_command(self) -> SubmitCommand:
        return QSUB

    def submit_next(self, run: CommandRunner, batch_id: str, script: str, env: Sequence[str]) -> str:
        return run([*env, "qsub", "-W", f"depend=afterany:{batch_id}"], stdin=script).out.strip()


SYSTEM = PbsSystem()


def _after(given: WrittenOption) -> tuple[int, ...] | None:
    jobs = re.fullmatch(r"depend=afterok:(\d+)", given.value)
    return (int(jobs[1]),) if jobs else None


def _array(given: WrittenOption) -> IndexArray:
    low, high = map(int, given.value.split("-"))
    return IndexArray(tuple(range(low, high + 1)))


class Qsub(SubmitCommand):
    """Reads `-l select=N:ngpus=M`, `-N`, `-J`, `-W depend=`."""

    system = SYSTEM
    mark = "#PBS"
    options = option_table({Reason.READ: "l N J W", Reason.TIME: "walltime", Reason.NODES: "q"}, flags="")
    readers = (("N", "name", VALUE), ("W", "after", _after), ("J", "array", _array))
    folder_variable = "PBS_O_WORKDIR"
    index_variable = "PBS_ARRAY_INDEX"
    after = "afterok:ID"
    dependency_option = "W"
    dependency_pattern = re.compile("-W")
    lookups: ClassVar[tuple[tuple[str, ...], ...]] = (("qstat", "-f"),)
    job_pattern = r"^Job Id: {}\b"
    no_job = re.compile("Unknown Job Id")

    def named(self, word: str, rest: list[str]) -> list[tuple[str, str | None, str]]:
        return [("walltime" if rest and rest[0].startswith("walltime=") else word[1:], None, word)]

    def sizes(
        self, last: Mapping[str, WrittenOption], written: Sequence[WrittenOption], ignored: list[IgnoredOption]
    ) -> tuple[int | None, int | None]:
        size = re.fullmatch(r"select=(\d+):ngpus=(\d+)", last["l"].value) if "l" in last else None
        return (int(size[1]), int(size[2])) if size else (None, None)

    def job_of(self, words: Sequence[str], around: Mapping[str, str], where: str) -> BatchScript:
        written, rest = self.split(words, where)
        return self.read(rest[0], read_file(rest[0]), tuple(rest[1:]), tuple(written))

    def array_variables(self, array: IndexArray) -> Mapping[str, object]:
        return {self.index_variable: INDEX}

    def dependency(self, words: Sequence[str], around: Mapping[str, str], text: str) -> BatchDependency | None:
        return None

    def answer(self, number: int, options: BatchOptions) -> str:
        return f"{number}.server"


QSUB = Qsub()


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in the table; and no other batch system round this process."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "LSB_", "LSF_", "PBS_")):
            monkeypatch.delenv(name)
    monkeypatch.setitem(BATCH_SYSTEMS, "pbs", __name__)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    folder = tmp_path / "scene"
    folder.mkdir(mode=0o700)
    scene = Scene(folder)
    yield scene
    scene.loop.stop()


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with PBS's commands alone; its folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in SYSTEM.commands:
        (folder / name).write_text("#!/bin/sh\nexit 1\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


# --- what hpcdl does with it -----------------------------------------------------------------------------------------


def test_it_is_found_by_its_variable_and_by_its_commands(commands: Path) -> None:
    assert find_system("auto", {"PBS_JOBID": "7", "PATH": "/nowhere"}) is SYSTEM
    assert find_system("auto", os.environ) is SYSTEM
    assert find_system("pbs", {}) is SYSTEM
    assert find_system("auto", {"PATH": "/nowhere"}) is None
    found = detect("auto", os.environ, now=lambda: 0.0)
    assert isinstance(found, PbsAdapter)


def test_a_name_that_nobody_knows_is_refused_in_a_line() -> None:
    with pytest.raises(BatchError, match=r"there is no batch system 'nqs': hpcdl knows slurm, lsf, pbs$"):
        system_named("nqs")


def test_a_site_file_has_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("kind: pbs\nchunk: host\nqueues: [idle]\n")
    assert (read_site(path).kind, read_site(path).keys) == ("pbs", {"chunk": "host"})
    path.write_text("kind: pbs\nchunk: rack\n")
    with pytest.raises(SiteError, match=r"site\.yaml:2: chunk: must be vnode or host"):
        read_site(path)
    path.write_text("kind: nqs\n")
    with pytest.raises(SiteError, match="kind: must be slurm or lsf or pbs"):
        read_site(path)


def test_the_doctor_asks_it_and_writes_its_site_file(hpcdl: Hpcdl, commands: Path, home: Path) -> None:
    batch = hpcdl("doctor", "--json").value["batch"]
    assert (batch["kind"], batch["answers"], batch["queues"]) == ("pbs", True, ["idle"])
    written = hpcdl("doctor", "--site", "--json").value["site"]
    assert written["kind"] == "pbs"
    assert '["-A", "PROJECT"]' in Path(written["file"]).read_text()
    assert load_site(written["file"], 2, home).kind == "pbs"
    assert hpcdl("holes", "--json").value["holes"][0]["nodes"] == ["p1", "p2"]


def test_a_batch_job_of_it_is_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = SYSTEM.adapter(AdapterSettings(lambda *_, **__: Completed("102\n", "", 0), lambda: 0.0))
    inside = {"PBS_JOBID": "7", "PBS_NODES": "p1 p2", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/h"}
    _, allocation = find_allocation(adapter, inside)
    assert allocation == Allocation("pbs", "7", ("p1", "p2"), 0)
    assert "#PBS -l ngpus=N" in without_gpus("pbs", driver=False)
    with pytest.raises(CannotRun, match=r"in no PBS batch job: start it from one \(see jobscripts/hpcdl\.pbs"):
        find_allocation(adapter, {})
    with pytest.raises(CannotRun, match=r"qsub jobscripts/hpcdl\.pbs"):
        find_allocation(None, {})


def test_the_next_allocation_is_submitted_by_its_command(tmp_path: Path) -> None:
    ran: list[tuple[list[str], str]] = []

    def run(argv: Sequence[str], *rest: Any, stdin: str = "", **more: Any) -> Completed:
        ran.append((list(argv), stdin))
        return Completed("102\n", "", 0)

    around = {"PBS_JOBID": "7", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/h"}
    path = tmp_path / "job"
    path.write_text("#!/bin/sh\n")
    assert of_a_chain(around, 3) == 3
    script = script_of(path, SYSTEM, around)
    assert submit_next(run, Allocation("pbs", "7", ("p1",), 4), script, 2, around) == "102"
    kept = ["env", "-u", "CUDA_VISIBLE_DEVICES", "-u", "PBS_JOBID", "HPCDL_CHAIN=2"]
    assert ran == [([*kept, "qsub", "-W", "depend=afterany:7"], "#!/bin/sh\n")]


def test_agents_know_its_variables_and_its_signals() -> None:
    assert scrubbed("PBS_JOBID")
    assert not scrubbed("PATH")
    assert granted({"PBS_GPUS": "0,1,2"}) == 3
    assert signal.SIGPWR in end_signals()


def test_a_script_with_its_lines_is_submitted(hpcdl: Hpcdl, fake: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "net.pbs"
    path.write_text(JOB)
    done = hpcdl("submit", path)
    assert done.code == 0, done.err
    assert "net.pbs:3: -l walltime=01:00:00 is ignored: a job of hpcdl has no time limit" in done.err
    (spec,) = specs(fake)
    assert (spec["gpus_min"], spec["nodes"], spec["name"], spec["after"]) == (4, 2, "net", [7])
    command = cast(list[str], spec["command"])
    assert command[:3] == ["env", f"PBS_O_WORKDIR={Path.cwd()}", "PBS_ARRAY_INDEX={index}"]


def test_its_command_line_is_taken_and_answered_in_its_words(hpcdl: Hpcdl, fake: FakeDaemon, tmp_path: Path) -> None:
    path = tmp_path / "net.pbs"
    path.write_text("#!/bin/sh\n#PBS -l select=1:ngpus=2\npython train.py\n")
    done = hpcdl("submit", "--as", "qsub", "--", "-N", "mine", path)
    assert done.code == 0, done.err
    assert done.out == f"{max(fake.world.jobs)}.server\n"
    assert [(spec["name"], spec["gpus_min"]) for spec in specs(fake)] == [("mine", 2)]
    done = hpcdl("submit", "--as", "nqs", "--", path)
    assert done.code == 2
    assert "'nqs' is not one of 'sbatch', 'bsub', 'qsub'" in done.err


def test_pilots_are_submitted_to_it(scene: Scene) -> None:
    adapter = SYSTEM.adapter(AdapterSettings(lambda *_, **__: Completed("", "", 0), lambda: 0.0))
    assert isinstance(adapter, PbsAdapter)
    scene.system = cast(Any, adapter)
    batching = scene.daemon()
    assert batching.kind == "pbs"
    scene.want(PilotSpec(2, 600.0, "idle", 4))
    scene.turn()
    assert scene.pilot().batch_id == "101"
    adapter.jobs["101"] = replace(adapter.jobs["101"], state=BatchState.RUNNING, nodes=("p1", "p2"), started_at=1000.0)
    scene.turn(31.0)
    assert scene.pilot().nodes == ("p1", "p2")
    assert batching.troubles == {}


def test_nothing_else_asks_for_a_batch_system_by_its_name() -> None:
    """A test for one name has an `else` that means the other one, and a third one is taken for it."""
    package = ROOT / "hpcdl"
    named = [
        f"{file.relative_to(ROOT)}:{node.lineno} has {node.value!r}"
        for file in sorted(package.rglob("*.py"))
        if file.relative_to(package).parts[0] not in ("slurm", "lsf", "sim", "demo")  # sim reads logs of each
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("slurm", "lsf", "sbatch", "bsub")
    ]
    assert {line.partition(":")[0] for line in named} == {"hpcdl/config/layers.py"}, named
