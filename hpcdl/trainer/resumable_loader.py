"""The data of a training that accelerate loads: its place in the middle of an epoch, exactly.

accelerate reads one batch ahead, and skips what is done without the random states that it was read by: what a dataset
or a collator draws at random differs from then on. Hugging Face's `Trainer` loads by accelerate, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcdl.trainer.generators import HeldGenerators


class ResumableLoader:
    """PyTorch's `DataLoader`, within accelerate's or alone, that can go on where another process was in the epoch."""

    def __init__(self, loader: Any, replay: bool, **more: Any) -> None:
        """`loader`: accelerate's, or PyTorch's. `replay`: see `hf.train`. `more`: what else may hold random generators
        of its own, as the loader's data set may."""
        self._ahead = hasattr(loader, "base_dataloader")
        self._loader = loader.base_dataloader if self._ahead else loader
        self.random = HeldGenerators(lambda: {"loader": self._loader, **more})
        self._replay = replay
        # Rank 0 may read a batch for each rank at once.
        dispatches = hasattr(loader, "_fetch_batches") and not loader.split_batches
        self._group = loader.state.num_processes if dispatches else 1
        self._resumed: dict[str, Any] | None = None
        self._read = 0  # in this epoch
        self.ended = False  # the epoch has no more, than what may have been read ahead
        self._epoch: dict[str, Any] | None = None
        self._before: dict[str, Any] | None = None

    @classmethod
    def within(cls, loader: Any, replay: bool, **more: Any) -> tuple[ResumableLoader, Any]:
        """One that reads for the loader, and what is to be iterated from now on."""
        batches = cls(loader, replay, **more)
        if not batches._ahead:
            return batches, batches
        loader.base_dataloader = batches
        return batches, loader

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._loader.__class__  # as accelerate's own loaders do: it is taken for what it stands for

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def place(self) -> dict[str, Any]:
        """For `go_on`: how many batches were trained on, and the random states that they were read by."""
        groups = -(-self._read // self._group)  # the last may have less
        done = (groups - 1) * self._group if self._ahead else self._read
        return {"done": done, "epoch": self._epoch, "before": self._before}

    def go_on(self, place: dict[str, Any]) -> None:
        """The next iteration is the rest of that one. `place`: with "random", the state at that time."""
        self._resumed = place

    def give_up(self) -> None:
        """Where another rank reads the data of this one: only the random state is this one's own."""
        if self._resumed is not None:
            self.random.restore(self._resumed["random"])
            self._epoch, self._before = self._resumed["epoch"], self._resumed["before"]
            self._resumed = None

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        self._read, self.ended = 0, False
        if resumed is not None and resumed["epoch"] is not None:
            self.random.restore(resumed["epoch"])
        self._epoch = self.random.capture()
        if resumed is None:
            batches = iter(self._loader)
        else:
            batches = self._skip(resumed["done"])
            self._read = resumed["done"]
            if self._ahead:
                self._before = resumed["before"]
                if self._before is not None:
                    self.random.restore(self._before)
                yield from self._next(batches, self._group)
            self.random.restore(resumed["random"])
        groups = 0
        while not self.ended:
            if self._ahead and not self._loader.num_workers:
                self._before = self.random.capture(again=groups == 1)  # of what is made at its first use, too
            yield from self._next(batches, self._group)
            groups += 1

    def _next(self, batches: Iterator[Any], number: int) -> Iterator[Any]:
        for _ in range(number):
            try:
                batch = next(batches)
            except StopIteration:
                self.ended = True
                return
            self._read += 1
            yield batch

    def _skip(self, done: int) -> Iterator[Any]:
        """The iterator after the batches that are done, which are loaded only where something depends on that."""
        from torch.utils.data import IterableDataset

        by_number = not isinstance(self._loader.dataset, IterableDataset)
        if self._loader.num_workers and by_number and not self._replay:
            from accelerate import skip_first_batches

            return iter(skip_first_batches(self._loader, done))
        batches: Any = iter(self._loader)
        for _ in range(done):
            if by_number and not self._loader.num_workers:
                batches._next_index()
            else:
                next(batches)
        return batches  # type: ignore[no-any-return]
