"""The ends of steps of a training whose loop is a framework's: progress, periodic checkpoints, the suspend.

`loop.steps` is for loops of one's own; Hugging Face, Lightning, accelerate and DeepSpeed come here. Every rank comes to
the same boundaries in the same order, and all of them write into one checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from hpcdl.trainer.checkpoints import Checkpoint
from hpcdl.trainer.completion import Limits
from hpcdl.trainer.group.peers import RankAgreement
from hpcdl.trainer.loop_exit import LoopExit
from hpcdl.trainer.session import attach, log

PLACE = "place"


class Epochs(Protocol):
    """A training over a loader's epochs. `epoch`: the first one to do. `step`: how many steps are done."""

    epoch: int
    step: int

    def batches(self, epoch: int) -> Any:
        """Those of the epoch that are still to do."""
        ...

    def save(self, folder: Path) -> None:
        """Write a checkpoint of where it is. Collective."""
        ...


class Boundaries:
    """Of one training. Steps count those that are done."""

    def __init__(self, every: int | None) -> None:
        """`every`: optimizer steps between two checkpoints; None: only on a suspend. Raises ValueError."""
        if every is not None and every < 1:
            raise ValueError(f"every {every} must be 1 or more")
        self.session = attach()
        self._every = every
        self._saved: int | None = None  # the step of the newest checkpoint
        self._tried = 0  # the step of the newest periodic save, failed or not; before that, the one to begin with
        self.ranks: RankAgreement | None = None
        self._found: Checkpoint | None = None
        self._complete = False  # the newest checkpoint is the last one

    @property
    def active(self) -> bool:
        """Whether there is anything to do: hpcdl is around, or a checkpoint folder is known."""
        return self.session.inside or self.session.checkpoint_dir is not None

    def resume(self) -> Checkpoint | None:
        """The checkpoint to go on from. Each rank looks for itself, for some frameworks want it before the ranks can
        talk; `begin` compares."""
        found = self.session.resume()
        self._saved = None if found is None else found.step
        self._found = found
        return found

    def is_complete(self, limits: Limits) -> bool:
        """Whether what was found is the last checkpoint of this job's training, and these limits leave nothing to
        train: then nothing is trained, validated or saved."""
        self._complete = self.session.is_complete(self._found, limits)
        return self._complete

    def begin(self, ranks: RankAgreement, step: int) -> None:
        """The training begins with `step` steps done. Raises RuntimeError where the ranks begin at several, or several
        take themselves for rank 0."""
        self.ranks, self._tried = ranks, step
        ranks.check_writer(self.session)
        begun = sorted({int(each) for each in ranks.gather(str(step))})
        if len(begun) > 1:
            raise RuntimeError(
                f"the ranks would go on from several steps ({', '.join(map(str, begun))}): "
                "the checkpoint folder must be one that all nodes share"
            )
        self.session.ready(step)

    def at(self, step: int, total: int | None, save: Callable[[Path], object], metric: float | None = None) -> None:
        """The end of a step: reports it, and where it is due calls `save(folder)` on every rank, each of which writes
        files of its own into the one folder. Does not return from a suspend."""
        assert self.ranks is not None
        self.session.progress(step, total, metric=metric)
        if self.ranks.agree(self.session.should_suspend()):
            if self._saved != step:
                self._save(step, save)
            self.ranks.barrier()
            self.session.exit_suspended()
        if self._every is None or step // self._every == self._tried // self._every:
            return
        self._tried = step
        try:
            self._save(step, save)
        except OSError as error:
            log.warning("the checkpoint of step %d failed, training goes on: %s", step, error)

    def _save(self, step: int, save: Callable[[Path], object]) -> None:
        if self.session.checkpoint_dir is None:
            return
        self.session.save(step, save, self.ranks)
        self._saved = step

    def complete(self, step: int, limits: Limits, save: Callable[[Path], object]) -> None:
        """The training has made its last step: writes its last checkpoint. On every rank; raises as `Session.save`."""
        if step and self.session.checkpoint_dir is not None and not self._complete:
            self.session.save(step, save, self.ranks, complete=limits)
            self._complete = True

    def end_early(self, step: int, limits: Limits, save: Callable[[Path], object]) -> None:
        """As `complete` and `done`, of a loop that a `break` has left; raises nothing."""
        self.session.end_early(step, lambda: self.complete(step, limits, save))

    def epochs(self, training: Epochs, total: int) -> Iterator[tuple[int, Any]]:
        """Yields those that are still to do, each with its batches, until the last one or a `break`; then the training
        is complete."""
        if self.is_complete((total,)):
            self.done(training.step)
            return
        way_out = LoopExit()
        for epoch in range(training.epoch, total):
            way_out.entered()
            try:
                yield epoch, training.batches(epoch)
            except GeneratorExit:
                if way_out.is_break():
                    self.end_early(training.step, (total,), training.save)
                raise
        self.complete(training.step, (total,), training.save)
        self.done(training.step)

    def done(self, step: int) -> None:
        """The training is complete."""
        self.session.done(step)


def write_place(folder: Path, place: dict[str, Any]) -> None:
    """This rank's random states and place in the data, plain values, for `read_place`."""
    (folder / f"{PLACE}-{attach().rank}.json").write_text(json.dumps(place))


def read_place(folder: Path) -> dict[str, Any] | None:
    """What this rank has written; None, and a warning, where the training had fewer ranks than now."""
    rank = attach().rank
    path = folder / f"{PLACE}-{rank}.json"
    if not path.exists():
        log.warning("%s was saved by fewer ranks: rank %d goes on as the framework does by itself", folder.name, rank)
        return None
    place: dict[str, Any] = json.loads(path.read_text())
    return place


def require(framework: str, of: Any, names: Iterable[str]) -> None:
    """Raises RuntimeError where the framework's object lacks one of these: before a step is trained, not at a save."""
    if missing := [name for name in names if not hasattr(of, name)]:
        version = getattr(sys.modules.get(framework), "__version__", "of this version")
        raise RuntimeError(
            f"{framework} {version} has no {', '.join(missing)} in its {getattr(of, '__name__', type(of).__name__)}, "
            "without which hpcdl cannot save its training: use a version that docs/trainer-guide.md names"
        )


@contextmanager
def changed(of: Any, **attributes: Any) -> Iterator[None]:
    """A framework's object has these attributes for a while."""
    before = {name: getattr(of, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(of, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(of, name, value)
