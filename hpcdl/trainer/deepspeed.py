"""Loops on DeepSpeed, suspended and resumed by its own `save_checkpoint` and `load_checkpoint`, ZeRO 1 to 3.

Every rank writes its shards into the one checkpoint, and its random states beside them. DeepSpeed is imported by the
script. A checkpoint is loaded by as many ranks as have saved it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcdl.trainer import rng
from hpcdl.trainer.boundaries import Boundaries, read_place, write_place
from hpcdl.trainer.loop_exit import LoopExit

TAG = "deepspeed"


def steps(engine: Any, total: int, *, every: int | None = None) -> Iterator[int]:
    """Yields the steps still to do, from 0 or from what was resumed, up to `total` - 1; in each the loop's body calls
    `engine.step()` once for each micro batch of the step (gradient_accumulation_steps).

    `engine`: what `deepspeed.initialize` returns. Call it on every rank. A checkpoint is written every `every` steps
    and on a suspend. The place in the data: seed by the step, or skip what is done.
    """
    from hpcdl.trainer.torch import Ranks

    boundaries = Boundaries(every)
    found = boundaries.resume()
    if found is not None:
        path, _ = engine.load_checkpoint(str(found.path), tag=TAG)
        if path is None:
            raise RuntimeError(f"DeepSpeed does not load {found.path}")
        if (place := read_place(found.path)) is not None:
            rng.restore(place["random"])

    def save(folder: Path) -> None:
        place = {"random": rng.capture()}
        engine.save_checkpoint(str(folder), tag=TAG)
        write_place(folder, place)

    start = 0 if found is None else found.step
    boundaries.begin(Ranks(), start)
    if boundaries.is_complete((total,)):
        boundaries.done(start)
        return
    way_out = LoopExit()
    for step in range(start, total):
        way_out.entered()
        try:
            yield step
        except GeneratorExit:
            if way_out.is_break():
                boundaries.end_early(step + 1, (total,), save)
            raise
        if step + 1 < total:
            boundaries.at(step + 1, total, save)
        else:
            boundaries.session.progress(total, total)
    boundaries.complete(max(start, total), (total,), save)
    boundaries.done(max(start, total))
