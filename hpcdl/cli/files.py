"""Files that commands write for their user."""

import os
from pathlib import Path

import click


def check_folder(target: Path) -> None:
    """ClickException where `target` can not be made for want of a folder that may be written to."""
    folder = target.parent
    if not target.name:
        raise click.ClickException("the file to write has no name")
    if not folder.is_dir():
        raise click.ClickException(f"{target}: there is no folder {folder}: make it first, or name another one")
    if not target.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise click.ClickException(f"{target}: folder {folder} may not be written to: name another one")


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
