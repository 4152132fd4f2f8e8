"""Functions that tests submit as jobs."""

import importlib.util
import sys
import time


def double(number: int) -> int:
    return 2 * number


def fail(text: str) -> None:
    raise ValueError(text)


def give_what_is_no_json() -> set[int]:
    return {1}


def say_where() -> dict[str, object]:
    """Which Python runs, which hpcdl it has, and why it cannot submit."""
    import hpcdl

    try:
        why = str(hpcdl.submit)
    except AttributeError as error:
        why = str(error)
    installed = [name for name in ("click", "yaml", "numpy") if importlib.util.find_spec(name)]
    loop = hpcdl.steps.__module__
    return {"prefix": sys.prefix, "hpcdl": hpcdl.__file__, "steps": loop, "installed": installed, "submit": why}


def wait_for_ever() -> None:
    time.sleep(10_000)
