"""Runs what a document shows: its files are written, its commands typed into one shell, its output compared.

    ```console
    $ hpcdl submit -- true            a command; the next lines are what it prints, up to the next command
    job 1 queued: true                numbers stand for any numbers, … for any text, a line of … for any lines
    $ hpcdl show 99    # exit 1       how it ends, where that is not with 0
    ```

A block of another language whose first line names a file (`# train.py`) is written to it. `text` blocks are left alone.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hpcdl.wire.readable import readable
from tests.support.waiting import until

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"\A# (?:file: )?([\w./-]+\.(?:py|yaml|sh|toml|csv))\b.*\n")
NUMBER = re.compile(r"\d[\d:.,]*")
PATIENCE_S = 240.0
MARK = "hpcdl-guide-end-of-command"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a document, what it should print, and the line where it stands."""

    text: str
    output: tuple[str, ...]
    code: int
    line: int


@dataclass(frozen=True, slots=True)
class File:
    """A file that a document shows."""

    name: str
    text: str


def steps(text: str) -> Iterator[Command | File]:
    """What a document does, in order. ValueError for a block that nothing is done with."""
    for block in BLOCK.finditer(text):
        language, body = block[1], block[2]
        line = text[: block.start()].count("\n") + 2
        if language == "console":
            yield from _commands(body, line)
        elif found := FILE.match(body):
            yield File(found[1], body)
        elif language != "text":
            raise ValueError(f"line {line}: a block of {language or 'no language'} that is neither run nor a file")


def _commands(body: str, line: int) -> Iterator[Command]:
    lines = body.splitlines()
    if not lines or not lines[0].startswith("$ "):
        raise ValueError(f"line {line}: a console block begins with a command")
    at = 0
    while at < len(lines):
        first, words = at, lines[at].removeprefix("$ ")
        at += 1
        while words.endswith("\\"):
            words, at = words + "\n" + lines[at].removeprefix("> "), at + 1
        output = []
        while at < len(lines) and not lines[at].startswith("$ "):
            output.append(lines[at])
            at += 1
        told = re.search(r"\s+# exit (\d+)$", words)
        code = int(told[1]) if told else 0
        yield Command(words[: told.start()] if told else words, tuple(output), code, line + first)


def matches(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Whether what was printed is what the document shows."""
    lines = [each.rstrip() for each in shown]
    pattern = "".join("(?:.*\n)*?" if each in ("…", "...") else _line(each) + "\n" for each in lines)
    return re.fullmatch(pattern, "".join(f"{each.rstrip()}\n" for each in printed)) is not None


def _line(text: str) -> str:
    """Any numbers for numbers, any widths for gaps, anything for an ellipsis."""
    parts = []
    for piece in re.split(r"(…|\s+)", text):
        if piece == "…":
            parts.append(".*")
        elif piece.isspace():
            parts.append(r"[ \t]+")
        else:
            places = NUMBER.split(piece)
            parts.append(NUMBER.pattern.join(re.escape(each) for each in places))
    return "".join(parts)


class Shell:
    """One bash, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        scripts = Path(sys.executable).parent
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("HPCDL_", "SLURM_"))}
        environ |= {"HOME": str(folder), "PATH": f"{scripts}:{environ['PATH']}", "LC_ALL": "C.UTF-8", "USER": "ada"}
        environ |= {
            "HPCDL_MONITOR_INTERVAL_S": "1",
            "HPCDL_NODE_NAME": "n1",
            "XDG_CONFIG_HOME": str(folder / ".config"),
        }
        environ.pop("COLUMNS", None)
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environ,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        """The exit code of a command and the lines that it printed, stderr among them."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\nprintf '\\n%s %d\\n' {MARK} $?\n".encode())
        self._process.stdin.flush()
        assert self._process.stdout is not None
        output, text = self._process.stdout.fileno(), b""

        def ended() -> re.Match[bytes] | None:
            nonlocal text
            if readable([output], 0.5):
                more = os.read(output, 1 << 16)
                assert more, f"{command}: the shell ended, printed:\n{text.decode()}"
                text += more
            return re.search(rf"\n{MARK} (\d+)\n".encode(), text)

        end = until(ended, f"the end of {command}", PATIENCE_S, story=lambda: text.decode())
        return int(end[1]), text[: end.start()].decode("utf-8", "replace").splitlines()

    def close(self) -> None:
        """Ends the shell; its daemon was stopped by then."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()


@contextmanager
def shell(folder: Path) -> Iterator[Shell]:
    """A shell whose daemon, if it started one and left it, is stopped at the end."""
    made = Shell(folder)
    try:
        yield made
    finally:
        try:
            made.run("hpcdl daemon status >/dev/null 2>&1 && hpcdl daemon stop --now >/dev/null 2>&1")
        finally:
            made.close()
