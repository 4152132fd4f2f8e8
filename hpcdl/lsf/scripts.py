"""The batch script as a file, where bsub wants one."""

import os
from pathlib import Path

from hpcdl.batch import BatchError, PilotScript


def write_script(script: PilotScript, body: str) -> Path:
    """Writes it beside the pilot's output, for its owner only and executable: LSF reads it, or runs it by its path.

    Raises BatchError.
    """
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in script.name)
    path = Path(script.output).absolute().parent / f"{name}.bsub"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o700)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(body)
    except OSError as error:
        raise BatchError(f"cannot write the batch script {path}: {error.strerror}") from None
    return path
