"""Whether the script of a job starts over after a suspend, as far as its text shows, and the note that says so.

Certain only where all of it can be read here: nothing in it, or in the modules beside it, names hpcdl, a signal or a
checkpoint, and it imports nothing but the standard library and frameworks that do none of this by themselves. Where it
names a checkpoint, but that is Hugging Face's Trainer's, it loses what came after the last one. Whatever is not certain
is not said; `hpcdl why` says of a running job what it has shown.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence

from hpcdl.batch.python_imports import CHARACTERS, FILES, files_of, imports_of
from hpcdl.core.model.job import JobSpec
from hpcdl.core.rules.launchers import MODULES, PROGRAMS

FRAMEWORKS = frozenset({
    "torch", "torchvision", "torchaudio", "tensorflow", "keras", "jax", "flax", "optax", "numpy", "scipy",
    "pandas", "sklearn", "transformers", "datasets", "tokenizers", "accelerate", "lightning",
    "pytorch_lightning", "deepspeed", "horovod", "timm", "einops", "torchmetrics", "evaluate", "peft", "trl",
    "xgboost", "lightgbm", "PIL", "cv2", "matplotlib", "seaborn", "tqdm", "yaml", "wandb", "tensorboard",
    "h5py",
})  # fmt: skip
"""Packages that save at no signal unless the script has them do it. They may all be imported; a package that is not
known here may do anything."""
ANSWERS = re.compile(
    r"hpcdl|signal|SIG[A-Z]{3}|submitit|preempt|requeue|jit_checkpoint"
    # and what runs code that is not seen here
    r"|\bexec\b|(?<!\.)\beval\(|__import__|import_module|runpy|subprocess|os\.system|popen",
    re.IGNORECASE,
)
"""Words of a script that may save when it is asked to."""
KEEPS = re.compile(
    r"checkpoint|ckpt|resum|restor|load_state|load_weights|load_model|torch\.load|orbax|\bload\(", re.IGNORECASE
)
"""Words of a script that may keep its work."""
TRAINER = re.compile(r"^\s*(?:from|import)\s+(?:transformers|trl)\b(?s:.*)\b\w*Trainer\(", re.MULTILINE)
"""A script that trains with Hugging Face's."""
PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?")
OURS = ("hpcdl.trainer.container", "hpcdl.trainer.gate", "hpcdl.trainer.ranks")
"""Modules that start a script as it is."""


def note(spec: JobSpec) -> str:
    """The line that the job starts over after a suspend, or goes back; "" where that is not certain."""
    if spec.signal != "hpcdl" or spec.resumes is not None or spec.rescale != "restart" or spec.batch is not None:
        return ""
    path = script_of(spec.command)
    texts = _texts(os.path.join(spec.cwd, path)) if path else ()
    if not texts or any(map(ANSWERS.search, texts)):
        return ""
    name = os.path.basename(path)
    if not any(map(KEEPS.search, texts)):
        return (
            f"{name} shows no way to checkpoint: after a suspend or a preemption it starts over "
            "(docs/trainer-guide.md: the lines that change that; --resumes: it resumes by itself)"
        )
    if not any(map(TRAINER.search, texts)):
        return ""
    return (
        f"{name} has only the checkpoints that Hugging Face's Trainer makes by itself: after a suspend or a preemption "
        "what it did since the last is done again (docs/trainer-guide.md: hf.train(trainer) for trainer.train() loses "
        "no step; --resumes: it resumes by itself)"
    )


def quiet(environ: Mapping[str, str]) -> bool:
    """Whether notes like it are not to be printed: by the user's word, or because no person reads them."""
    silenced = bool(environ.get("HPCDL_QUIET")) or environ.get("HPCDL_VERBOSE") == "0"
    return silenced or not on_terminal()


def on_terminal() -> bool:
    """Whether a person reads what is said."""
    return sys.stderr.isatty()


def script_of(command: Sequence[str]) -> str:
    """The Python script that the words run, by an interpreter or by a launcher of ranks; "" for anything else."""
    words = list(command)
    if words[0].rpartition("/")[2] == "env":
        words = words[next((place for place, word in enumerate(words) if place and "=" not in word), len(words)) :]
    name = words[0].rpartition("/")[2] if words else ""
    if not (PYTHON.fullmatch(name) or name in PROGRAMS or name == "accelerate"):
        return ""
    for place, word in enumerate(words):
        if word.startswith("-c") and PYTHON.fullmatch(name):
            return ""
        if word == "-m" and not {*words[place + 1 : place + 2]} & {*MODULES, *OURS}:
            return ""
        if word.endswith(".py") and place:
            return word
    return ""


def _texts(script: str) -> Sequence[str]:
    """The script and the modules beside it that it imports; none where there is more to it than can be read here."""
    waiting, known, texts = [script], {script}, []
    while waiting:
        path = waiting.pop()
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(CHARACTERS + 1)
            if len(text) > CHARACTERS or len(known) > FILES:
                return ()
            texts.append(text)
            modules = imports_of(text)
        except (OSError, ValueError, SyntaxError, RecursionError):
            return ()
        for level, module in modules:
            found = files_of(level, module, path, script)
            if not found and (level or module.partition(".")[0] not in sys.stdlib_module_names | FRAMEWORKS):
                return ()
            waiting += [each for each in found if each not in known]
            known.update(found)
    return texts
