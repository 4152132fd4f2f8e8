"""Files that commands write for their user."""

import os
from pathlib import Path


def replace_file(target: Path, text: str) -> None:
    """Write the file whole or not at all; it may be read in a browser meanwhile. Raises OSError."""
    if target.exists() and not target.is_file():  # /dev/stdout, a pipe
        target.write_text(text, encoding="utf-8")
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
