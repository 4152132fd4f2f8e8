"""State that is spread over the ranks: FSDP, DTensor, and what is not spread in the same checkpoints."""

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hpcdl.trainer import checkpoints
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.trainer.preloaded import PLAIN, ROOT, Forked, Preloaded, ended, preloaded

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]
SCRIPT = Path(__file__).parent / "sharded_fit.py"
SLOW_S = 240.0


@pytest.fixture(scope="module")
def origin() -> Iterator[Preloaded]:
    with preloaded("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.tensor") as made:
        yield made


class Runs:
    """Groups of ranks, one after the other, on one checkpoint folder; outside of hpcdl."""

    def __init__(self, origin: Preloaded, folder: Path) -> None:
        self._origin, self.folder = origin, folder
        self.checkpoints = folder / "checkpoints"
        self._number = 0

    def start(self, ranks: int, *arguments: str, stops: str = "") -> list[Forked]:
        self._number += 1
        self.out = self.folder / f"out{self._number}"
        self.out.mkdir()
        env = {name: value for name, value in os.environ.items() if not name.startswith("HPCDL_")} | PLAIN
        env |= {"PYTHONPATH": str(ROOT), "HPCDL_CHECKPOINT_DIR": str(self.checkpoints), "WORLD_SIZE": str(ranks)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "TEST_STOPS_AT": stops}
        with (self.out / "log").open("wb") as log:
            return [
                self._origin.start(
                    [str(SCRIPT), str(self.out), *arguments],
                    env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    log,
                )
                for rank in range(ranks)
            ]

    def run(self, ranks: int, *arguments: str, stops: str = "") -> dict[int, str]:
        """The states by their steps."""
        codes = ended(self.start(ranks, *arguments, stops=stops), SLOW_S)
        assert codes == [0] * ranks, (self.out / "log").read_text()
        return self.states()

    def states(self) -> dict[int, str]:
        return dict(map(json.loads, (self.out / "states").read_text().splitlines()))

    def log(self) -> str:
        return (self.out / "log").read_text()[-5000:]


@pytest.fixture
def runs(origin: Preloaded, tmp_path: Path) -> Runs:
    return Runs(origin, tmp_path)


def steps(runs: Runs) -> list[int]:
    return [each.step for each in checkpoints.complete(runs.checkpoints)]


def shards(runs: Runs) -> int:
    newest = checkpoints.complete(runs.checkpoints)[0]
    assert checkpoints.damage(newest) == ""
    return len(list((newest.path / "state").glob("*.distcp")))


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1", "dtensor", "ddp"])
def test_it_goes_on_on_another_number_of_ranks(runs: Runs, kind: str) -> None:
    first = runs.run(4, "--kind", kind, "--steps", "6", "--unused")
    assert shards(runs) == 4
    second = runs.run(2, "--kind", kind, "--steps", "9", "--unused", "--asynchronous")
    assert shards(runs) == 2
    third = runs.run(3, "--kind", kind, "--steps", "11", "--unused")
    assert (list(first), list(second), list(third)) == ([*range(7)], [*range(6, 10)], [*range(9, 12)])
    assert second[6] == first[6]
    assert third[9] == second[9]
    assert len({*first.values(), *second.values(), *third.values()}) == 12, "every step changes it"


@pytest.mark.parametrize(
    "kind,ranks,more", [("fsdp2", 3, ["--asynchronous"]), ("fsdp1", 2, []), ("plain", 1, ["--asynchronous"])]
)
def test_suspended_at_any_step_it_is_the_same_bit_for_bit(
    runs: Runs, kind: str, ranks: int, more: Sequence[str]
) -> None:
    arguments = ["--kind", kind, "--steps", "11", *more]
    whole = runs.run(ranks, *arguments)
    shutil.rmtree(runs.checkpoints)
    parts: dict[int, str] = {}
    for stop in (1, 5, 8):
        parts |= runs.run(ranks, *arguments, stops=str(stop))
        assert steps(runs)[0] == stop
    parts |= runs.run(ranks, *arguments)
    assert parts == whole


def test_suspended_before_its_first_step_it_is_the_same(runs: Runs) -> None:
    whole = runs.run(2, "--steps", "3")
    shutil.rmtree(runs.checkpoints)
    assert runs.run(2, "--steps", "0") == {0: whole[0]}
    assert runs.run(2, "--steps", "3") == whole


@pytest.mark.parametrize("more", [[], ["--asynchronous"]])
def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(runs: Runs, more: Sequence[str]) -> None:
    processes = runs.start(3, "--steps", "30", "--hang-at", "8", *more)
    until_all(processes, [runs.out / f"hangs-{rank}" for rank in range(3)], runs)
    for each in processes:
        each.kill()
    for each in processes:
        each.wait(SLOW_S)
    before = runs.states()
    assert steps(runs) == [4]
    after = runs.run(2, "--steps", "12", *more)
    assert min(after) == 4
    assert after[4] == before[4]
    assert steps(runs)[0] == 12
    assert [name for name in os.listdir(runs.checkpoints) if name.startswith(".tmp-")] == []


def until_all(processes: Sequence[Forked], paths: Sequence[Path], runs: Runs) -> None:
    def come_or_never() -> bool:
        return all(path.exists() for path in paths) or any(each.poll() is not None for each in processes)

    until(come_or_never, "all files", SLOW_S, story=runs.log)
    assert all(path.exists() for path in paths), runs.log()


@pytest.mark.parametrize("more", [[], ["--asynchronous"]])
def test_a_disk_that_is_full_on_one_rank_costs_that_checkpoint_only(runs: Runs, more: Sequence[str]) -> None:
    states = runs.run(2, "--steps", "10", "--full-at", "4", *more)
    assert sorted(states) == [*range(11)]
    assert "the checkpoint of step 4 failed, training goes on" in runs.log()
    assert steps(runs) == [10, 8]


@pytest.mark.parametrize("where", ["index", "values"])
def test_what_is_read_runs_nothing(tmp_path: Path, where: str) -> None:
    """PyTorch itself would unpickle both."""
    import io
    import pickle

    import torch

    from hpcdl.trainer.sharded import INDEX, _planner, _reader

    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "harm"),))

    if where == "index":
        (tmp_path / INDEX).write_bytes(pickle.dumps(Harm()))
        with pytest.raises(pickle.UnpicklingError, match="an index of shards holds no posix"):
            _reader(tmp_path).read_metadata()
    else:
        raw = io.BytesIO()
        torch.save(Harm(), raw)
        raw.seek(0)
        with pytest.raises(pickle.UnpicklingError):
            _planner().load_bytes(None, raw)
    assert not (tmp_path / "harm").exists()


def test_a_copy_is_of_the_same_class_and_version() -> None:
    """Modules look at the version of what they load, which a state keeps beside its tensors."""
    import torch

    from hpcdl.trainer.torch import copied

    state = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).state_dict()
    copy = copied(state)
    assert type(copy) is type(state)
    assert copy._metadata == state._metadata != {}
    assert [*copy] == [*state]
    for name, tensor in state.items():
        assert torch.equal(copy[name], tensor)
        assert copy[name].data_ptr() != tensor.data_ptr()
