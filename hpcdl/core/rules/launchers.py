"""Commands that start a job's ranks themselves: torchrun and its kind. On several nodes hpcdl does that, and a launcher
within it would start a whole training for each rank. Pure: from words and the text of a script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdl.core.model.job import JobSpec

PROGRAMS = frozenset({"torchrun", "deepspeed", "horovodrun", "mpirun", "mpiexec"})
MODULES = frozenset({
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "horovod.runner.launch",
    "accelerate.commands.accelerate_cli", "deepspeed.launcher.runner",
})  # fmt: skip
TORCHRUNS = frozenset({"torchrun", "python -m torch.distributed.run", "python -m torch.distributed.launch"})
"""On a fixed number of nodes these find each other by PET_* variables (hpcdl/agent/rendezvous.py), unless:"""
STANDALONE = re.compile(r"--standalone\b")
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh"})
ACROSS = re.compile(
    r"--?(nnodes|rdzv[-_]endpoint|master[-_]addr|node[-_]rank|num[-_]machines|machine[-_]rank|hostfile|hosts?)\b"
)
"""Options by which a launcher finds its like on other nodes."""
_BREAKS = re.compile(r"[;&|\n(){}`]|\$\(")
_SET = re.compile(r"[A-Za-z_]\w*=")
_FIRST = frozenset({"exec", "command", "time", "then", "do", "else", "if", "!", "while", "until"})


def launcher_of(command: Sequence[str]) -> str:
    """The launcher that these words run, "" for none. What is run by another program's arguments is not seen."""
    for place, word in enumerate(command):
        name, rest = word.rpartition("/")[2], command[place + 1 :]
        if name in PROGRAMS:
            return name
        if name == "accelerate" and rest and rest[0] == "launch":
            return "accelerate launch"
        if word.startswith("-m"):
            module = word[2:] or next(iter(rest), "")
            return f"python -m {module}" if module in MODULES else ""
        if name in SHELLS:
            return _of_shell(rest)
        if name.endswith((".py", ".sh")) or word == "-c":
            return ""  # what follows are arguments
    return ""


def launcher_in(script: str) -> str:
    """The launcher that a shell script runs, "" for none."""
    text = "\n".join(line for line in script.split("\n") if not line.lstrip().startswith("#"))
    for piece in _BREAKS.split(text.replace("\\\n", " ")):
        try:
            words = shlex.split(piece, comments=True)
        except ValueError:
            words = piece.split()
        while words and (_SET.match(words[0]) or words[0] in _FIRST):
            del words[0]
        if found := launcher_of(words):
            return found
    return ""


def shell_script(command: Sequence[str]) -> str:
    """The file that the words have a shell run, "" where they name none."""
    for place, word in enumerate(command):
        if word.rpartition("/")[2] in SHELLS:
            rest = command[place + 1 :]
            return next((each for each in rest if not each.startswith("-")), "") if "c" not in _flags(rest) else ""
    return ""


def check_launcher(spec: JobSpec, script: str = "") -> None:
    """Raises ValueError where the command's launcher would run within hpcdl's, or once on each node without the others.

    `script`: the text of the script that the command runs, as far as it is known.
    """
    if spec.batch is not None and spec.batch.first_only:
        return  # it runs once, and starts what runs on the other nodes itself
    several = spec.nodes > 1 or spec.nodes_max is not None
    if spec.rescale == "restart" and not several:
        return
    launcher = launcher_of(spec.command) or launcher_in(script)
    if not launcher:
        return
    if spec.rescale == "restart":
        texts = (script, *spec.command)
        if any(ACROSS.search(text) for text in texts):
            return
        alone = any(STANDALONE.search(text) for text in texts)
        if launcher in TORCHRUNS and not alone:
            return
        known = launcher in TORCHRUNS
        way = "leave --standalone out, and it" if known else "leave it out: each node's process then"
        raise ValueError(
            f"{launcher} in the command would start a training of its own on each of {spec.nodes} nodes: {way} finds "
            "the others by variables that hpcdl sets; or add --rescale torchrun, by which hpcdl starts the ranks "
            "(docs/elastic.md)"
        )
    means = "torchrun" if spec.rescale == "torchrun" else "its ranks"
    raise ValueError(
        f"hpcdl starts {means} itself on every node, one rank for each GPU, and {launcher} in the command would nest: "
        "leave it out: hpcdl submit --nodes MIN:MAX --gpus N -- python train.py; on one node it may stay: --gpus N"
    )


def _of_shell(rest: Sequence[str]) -> str:
    if "c" not in _flags(rest):
        return ""
    text = next((each for each in rest if not each.startswith("-")), "")
    return launcher_in(text)


def _flags(rest: Sequence[str]) -> str:
    """The letters of a shell's options."""
    found = ""
    for word in rest:
        if not word.startswith("-"):
            break
        found += "" if word.startswith("--") else word[1:]
    return found
