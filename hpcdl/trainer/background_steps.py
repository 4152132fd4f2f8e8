"""What else keeps a background's step out of its foreground's way on a GPU: pieces, bounded launches, bans, priority.

Only the graphs have run on a GPU yet, so nothing uses it by itself; each part works alone. The step gate, which always
counts, is in step_gate.py. PyTorch is imported at the first use.

    launcher = background_steps.Launcher(outstanding=2)     # background: a stream of low priority
    pieces = launcher.graphs([forward, backward, update])   # the step, captured once as CUDA graphs
    for step in hpcdl.steps(total, ...):
        for piece in pieces:
            launcher.launch(piece)

    with background_steps.collective():                     # foreground: no background launches meanwhile
        all_reduce_gradients()
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcdl.trainer.session import Session, attach
from hpcdl.trainer.step_gate import ATTEMPT, BAN, JOB, SharePage

BAN_S = 0.05
"""A ban that is older is of a foreground that has died, or whose collective takes longer than any launch is worth."""

POLL_S = 0.0002


@contextmanager
def collective() -> Iterator[None]:
    """The foreground is in a collective: a background beside it launches nothing for that time."""
    page = attach().page
    if page is not None:
        page.words[BAN] = time.monotonic_ns()
    try:
        yield
    finally:
        if page is not None:
            page.words[BAN] = 0


def micro_batches(samples: int, most: int) -> list[slice]:
    """A batch cut into as equal parts as can be, of at most so many samples: shorter launches, the same sum of
    gradients. Raises ValueError."""
    if samples < 1 or most < 1:
        raise ValueError(f"samples {samples} and most {most} must be 1 or more")
    parts = -(-samples // most)
    ends = [samples * number // parts for number in range(parts + 1)]
    return [slice(begin, end) for begin, end in zip(ends, ends[1:])]


class Launcher:
    """Launches the pieces of a background's step, at most `outstanding` of which the GPU has not done."""

    def __init__(self, outstanding: int = 2, cuda: Any = None) -> None:
        """`cuda`: torch.cuda, or what stands for it. Raises ValueError; RuntimeError without a GPU."""
        if outstanding < 1:
            raise ValueError(f"outstanding {outstanding} must be 1 or more")
        if cuda is None:
            import torch

            cuda = torch.cuda
            if not cuda.is_available():
                raise RuntimeError("there is no GPU: a background's pieces are launched on one")
        self._cuda = cuda
        self._outstanding = outstanding
        self._events: deque[Any] = deque()
        self._bans = Bans(attach())
        # The lowest priority that there is; the default is 0, and only the foreground's streams have a higher one.
        self.stream = cuda.Stream(priority=0)

    def graphs(self, pieces: Sequence[Callable[[], object]], warm_up: int = 3) -> list[Callable[[], object]]:
        """The pieces as CUDA graphs, each of which is one launch; they share memory, so they run in this order only.
        Their tensors must stay where they are: what changes is copied into them."""
        self.stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self.stream):
            for _ in range(warm_up):
                for piece in pieces:
                    piece()
        pool, found = self._cuda.graph_pool_handle(), []
        for piece in pieces:
            graph = self._cuda.CUDAGraph()
            with self._cuda.graph(graph, pool=pool, stream=self.stream):
                piece()
            found.append(graph.replay)
        return found

    def launch(self, piece: Callable[[], object]) -> None:
        """Runs one piece on the stream once there is room, and no ban."""
        while len(self._events) >= self._outstanding:
            self._events.popleft().synchronize()
        self._bans.wait()
        with self._cuda.stream(self.stream):
            piece()
            event = self._cuda.Event()
            event.record(self.stream)
        self._events.append(event)

    def finish(self) -> None:
        """Returns once the GPU has done all that was launched."""
        while self._events:
            self._events.popleft().synchronize()


class Bans:
    """What the foreground beside this background says, in its page (`collective`)."""

    def __init__(self, session: Session) -> None:
        self._page = session.page
        self._runs = Path(session.run_folder).parent if self._page is not None else Path()
        self._of = (0, 0)
        self._foreground: SharePage | None = None

    def wait(self) -> None:
        """Returns once the foreground is in no collective; after BAN_S at the latest."""
        while self.banned:
            time.sleep(POLL_S)

    @property
    def banned(self) -> bool:
        """Whether the foreground is in a collective now."""
        if self._page is None:
            return False
        of = (self._page.words[JOB], self._page.words[ATTEMPT])
        if of != self._of:
            self._of, self._foreground = of, self._find(of)
        began = 0 if self._foreground is None else self._foreground.words[BAN]
        return bool(began) and time.monotonic_ns() - began < BAN_S * 1e9

    def _find(self, of: tuple[int, int]) -> SharePage | None:
        try:
            return SharePage(self._runs / f"{of[0]}.{of[1]}") if of[0] else None
        except OSError:
            return None  # it has gone, and its folder with it
