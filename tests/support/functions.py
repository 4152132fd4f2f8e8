"""Functions that tests submit as jobs."""

import time


def double(number: int) -> int:
    return 2 * number


def fail(text: str) -> None:
    raise ValueError(text)


def give_what_is_no_json() -> set[int]:
    return {1}


def wait_for_ever() -> None:
    time.sleep(10_000)
