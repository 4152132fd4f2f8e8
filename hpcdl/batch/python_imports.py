"""What the text of a Python script imports, and which files beside it those are. Nothing is run."""

from __future__ import annotations

import os

CHARACTERS, FILES = 1 << 18, 50
"""Of each file, and how many of them are looked at: beyond that nobody knows what a script does."""


def imports_of(text: str) -> set[tuple[int, str]]:
    """What a text imports: how many dots it is relative by, and the module or the name in one. Raises SyntaxError,
    ValueError and RecursionError."""
    import ast

    found: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {(0, each.name) for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            before = f"{node.module}." if node.module else ""
            found |= {(node.level, before + each.name) for each in node.names}
    return found


def files_of(level: int, module: str, importer: str, script: str) -> list[str]:
    """The files that an import of this name in the file `importer` runs, as far as they are there. `script`: what
    Python was started with, whose folder modules are found in."""
    path = os.path.dirname(script) if not level else os.path.normpath(os.path.join(importer, *[".."] * level))
    found = []
    for part in module.split("."):
        path = os.path.join(path, part)
        found += [each for each in (f"{path}.py", os.path.join(path, "__init__.py")) if os.path.isfile(each)]
        if not os.path.isdir(path):
            break
    return found
