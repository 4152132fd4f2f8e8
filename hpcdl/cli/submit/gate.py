"""`hpcdl submit --gate`: any Python script behind the gate, without a changed line.

From `python train.py` to `python -m hpcdl.trainer.gate train.py`, with the interpreter and its options as they are.
Pure: from words to words.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from hpcdl.core.rules.launchers import launcher_of

GATE = ("-m", "hpcdl.trainer.gate")
PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
ISOLATED = re.compile(r"-[a-zA-Z]*[EI][a-zA-Z]*")


def runs_gate(command: Sequence[str]) -> bool:
    """Whether the command is a script behind the gate, so that it may be started ahead."""
    return GATE in pairwise(command)


def behind_gate(command: Sequence[str]) -> tuple[str, ...]:
    """The command with its script behind the gate. Raises ValueError where it runs no Python script."""
    words = tuple(command)
    return words if runs_gate(words) else run_by(GATE, words, "--gate")


def run_by(module: Sequence[str], words: tuple[str, ...], option: str) -> tuple[str, ...]:
    """The command with its script run by a module of the trainer library, which is to be put before the script. Raises
    ValueError where it runs no Python script; `option` is what asked for that."""
    at = 0
    if words[0].rpartition("/")[2] == "env":
        at = next((place for place, word in enumerate(words) if place and "=" not in word), 0)
    if not PYTHON.fullmatch(words[at].rpartition("/")[2]):
        launcher = launcher_of(words)
        why = f"{launcher} starts its ranks itself" if launcher else f"{words[at][:100]} is no Python interpreter"
        raise ValueError(f"{option} is for python SCRIPT and python -m MODULE: {why}")
    place = at + 1
    while place < len(words) and words[place].startswith("-") and not words[place].startswith(("-m", "-c")):
        if ISOLATED.fullmatch(words[place]):
            raise ValueError(f"{option}: python {words[place]} does not look where hpcdl.trainer is: leave that out")
        place += 2 if words[place] in WITH_VALUE else 1
    rest = words[place:]
    if rest and rest[0].startswith("-m"):
        rest = ("-m", rest[0][2:], *rest[1:]) if len(rest[0]) > 2 else rest
        if len(rest) < 2:
            rest = ()
    if not rest or rest[0].startswith("-c") or "-" in words[at + 1 : place]:
        raise ValueError(f"{option} is for python SCRIPT and python -m MODULE: this command names neither")
    if launcher := launcher_of(words):
        raise ValueError(f"{option} is for python SCRIPT and python -m MODULE: {launcher} starts its ranks itself")
    return (*words[:place], *module, *rest)
