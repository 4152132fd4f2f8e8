"""Which ways out of a loop are a `break`: told by a generator that is closed."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from hpcdl.trainer.loop_exit import LoopExit
from tests.trainer.supervisor import ROOT

Loop = Callable[[], Iterator[int]]
"""Makes the steps of a loop, which nobody else holds."""


class Steps:
    """A loop's steps, and how it was left: None while it was not."""

    def __init__(self) -> None:
        self.by_break: bool | None = None

    def __iter__(self) -> Iterator[int]:
        way_out = LoopExit()
        for step in range(5):
            way_out.entered()
            try:
                yield step
            except GeneratorExit:
                self.by_break = way_out.is_break()
                raise


def bar(steps: Iterator[int]) -> Iterator[int]:
    """As a progress bar does it."""
    try:
        for step in steps:
            yield int(step)
    finally:
        str(steps)


def delegates(steps: Iterator[int]) -> Iterator[int]:
    yield from steps


def breaks(steps: Loop) -> None:
    for step in steps():
        if step == 2:
            break


def returns(steps: Loop) -> int:
    for step in steps():
        if step == 2:
            return step
    return 0


def breaks_out_of_blocks(steps: Loop) -> None:
    for step in steps():
        try:
            with contextlib.suppress(ValueError):
                if step == 2:
                    break
        finally:
            str(step)


def breaks_out_of_two(steps: Loop) -> None:
    for step in steps():
        for batch in range(3):
            if step + batch == 3:
                break
        else:
            continue
        break


def ends(steps: Loop) -> None:
    for _ in steps():
        pass


def raises(steps: Loop) -> None:
    for step in steps():
        if step == 2:
            raise ValueError(step)


def fails(steps: Loop) -> None:
    for step in steps():
        1 // (2 - step)


def catches(steps: Loop) -> None:
    try:
        for step in steps():
            int(f"x{step}")
    except ValueError:
        pass


def exits(steps: Loop) -> None:
    for step in steps():
        if step == 2:
            sys.exit(0)


def is_signalled(steps: Loop) -> None:
    for step in steps():
        if step == 2:
            signal.raise_signal(signal.SIGINT)


def asserts(steps: Loop) -> None:
    for step in steps():
        assert step < 2


@pytest.mark.parametrize(
    "wrapped", [iter, bar, delegates, lambda steps: bar(bar(steps)), lambda steps: map(int, steps)]
)
@pytest.mark.parametrize(
    ("loop", "by_break"),
    [
        (breaks, True), (returns, True), (breaks_out_of_blocks, True), (breaks_out_of_two, True), (ends, None),
        (raises, False), (fails, False), (catches, False), (exits, False), (is_signalled, False), (asserts, False),
    ],
)  # fmt: skip
def test_the_ways_out_of_a_loop(
    loop: Callable[[Loop], object],
    by_break: bool | None,
    wrapped: Callable[[Iterator[int]], Iterator[int]],
) -> None:
    for _ in range(40):  # the interpreter specialises its instructions after some rounds
        steps = Steps()

        def make(steps: Steps = steps) -> Iterator[int]:
            return wrapped(iter(steps))

        with contextlib.suppress(ValueError, ZeroDivisionError, AssertionError, SystemExit, KeyboardInterrupt):
            loop(make)
        assert steps.by_break is by_break


def test_what_is_closed_or_forgotten_is_no_break() -> None:
    steps = Steps()
    held = iter(steps)
    for _ in held:
        break
    assert steps.by_break is None, "it may go on"
    held.close()  # type: ignore[attr-defined]
    assert steps.by_break is False
    forgotten = Steps()
    held = iter(forgotten)
    next(held)
    del held
    assert forgotten.by_break is False


def swallows(steps: Iterator[int]) -> Iterator[int]:
    """It is closed, and says nothing of it."""
    for step in steps:
        try:
            yield step
        except GeneratorExit:
            return


def skips(steps: Iterator[int]) -> Iterator[int]:
    for step in steps:
        with contextlib.suppress(GeneratorExit):
            yield step
            continue
        break


def stops(steps: Steps) -> Iterator[int]:
    for step in steps:
        yield step
        if step == 2:
            break


@pytest.mark.parametrize("wrapped", [swallows, skips, lambda steps: bar(swallows(steps))])
@pytest.mark.parametrize(("loop", "by_break"), [(breaks, True), (returns, True), (raises, False), (exits, False)])
def test_a_generator_round_it_that_says_nothing_of_its_end(
    loop: Callable[[Loop], object], by_break: bool, wrapped: Callable[[Iterator[int]], Iterator[int]]
) -> None:
    for _ in range(40):
        steps = Steps()

        def make(steps: Steps = steps) -> Iterator[int]:
            return wrapped(iter(steps))

        with contextlib.suppress(ValueError, SystemExit):
            loop(make)
        assert steps.by_break is by_break


@pytest.mark.parametrize("wrapped", [stops, lambda steps: bar(stops(steps))])
def test_a_generator_round_it_that_leaves_its_loop(wrapped: Callable[[Steps], Iterator[int]]) -> None:
    for _ in range(40):
        steps = Steps()
        for _ in wrapped(steps):
            pass
        assert steps.by_break is True


def test_an_exception_that_is_forgotten_elsewhere_is_no_break() -> None:
    steps = Steps()

    def train() -> None:
        held = iter(steps)
        for step in held:
            if step == 2:
                raise OSError

    def guard() -> Exception | None:
        try:
            train()
        except OSError as error:
            return error
        return None

    guard()
    assert steps.by_break is False


def test_a_step_that_was_only_looked_at_is_no_break() -> None:
    steps = Steps()

    def peek() -> Iterator[int]:
        held = iter(steps)
        next(held)
        return held

    peek()
    assert steps.by_break is False


def test_of_one_that_the_end_of_the_interpreter_closes_nothing_is_said() -> None:
    script = "from tests.trainer.test_loop_exit import Steps\nheld = iter(Steps())\nnext(held)\n"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
