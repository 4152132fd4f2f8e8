"""Kinds of values on the command line: files to read and write, times, numbers; and how a file is replaced as a whole.

click checks them while it reads the options, so that a command that begins to run has what it needs.
"""

import math
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

import click

from hpcdl.core.model.units import meant, one_of, parse_duration
from hpcdl.daemon.clock import WallClock


def names_in(text: str, known: Sequence[str], option: str) -> list[str]:
    """The names in `a,b`, each once. Raises BadParameter, which lists those there are."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    wrong = next((name for name in names if name not in known), None if names else text)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r}: {one_of(wrong, known)}", click.get_current_context(), None, f"'{option}'")
    return names


class OneOf(click.Choice[str]):
    """One of a few words. Fails with the nearest, else with those there are."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """What is wrong."""
        hint = meant(str(value), self.choices, "")
        return f"{value!r}: {hint}" if hint else super().get_invalid_choice_message(value, ctx)


class InputFile(click.Path):
    """A file to read, which is there: else a line that says what is, and exit 1. `allow_dash`: `-` is stdin.

    `folders`: a folder will do as well.
    """

    def __init__(self, *, allow_dash: bool = False, folders: bool = False) -> None:
        super().__init__(dir_okay=folders, allow_dash=allow_dash, path_type=Path)
        self._folders = folders

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises ClickException."""
        if not (self.allow_dash and value == "-") and (ctx is None or not ctx.resilient_parsing):
            check_input(Path(value), self._folders)
        return super().convert(value, param, ctx)


class MaybeFile(InputFile):
    """A file to read, or "" of an option that was given without one: None would be an option that is not there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or "". Raises ClickException."""
        return super().convert(value, param, ctx) if value else value


class OutputFile(click.Path):
    """A file to write, in a folder that is there: else a line that says what is wrong, and exit 1.

    `plain`: where something is there already, it must be a plain file.
    """

    def __init__(self, *, plain: bool = False) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self._plain = plain

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises ClickException."""
        path: Any = super().convert(value, param, ctx)
        if ctx is None or not ctx.resilient_parsing:
            check_folder(path)
            if self._plain and path.exists() and not path.is_file():
                raise click.ClickException(f"{path} is not a file: name one")
        return path


class RecordFolderName(click.Path):
    """A folder for a record, which is there or can be made in one that is: else a line that says so, and exit 1."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path. Raises ClickException."""
        path = Path(value)
        if ctx is None or not ctx.resilient_parsing:
            if path.exists() and not path.is_dir():
                raise click.ClickException(f"{path} is a file: name a folder for the record")
            check_folder(path)
        return super().convert(value, param, ctx)


def user_name(uid: int) -> str:
    """The user's name; the number of one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


SKIP_SINGLE = click.option(
    "--skip-single", is_flag=True, help="Pass over nodes that idle in a single poll of a record, as BFTrainer does."
)
REPORT = click.option("--report", type=OutputFile(), metavar="FILE", help="The HTML file to draw into.")


def check_input(path: Path, folders: bool = False) -> None:
    """Raises ClickException where there is no such file to read, or folder where these will do."""
    if path.is_dir():
        if folders:
            return
        raise click.ClickException(f"{path} is a folder: name a file")
    if os.path.exists(path):
        return
    folder = path.parent
    if not folder.is_dir():
        raise click.ClickException(f"there is no file {path}, nor a folder {folder}: correct the path")
    others = os.listdir(folder) if os.access(folder, os.R_OK) else []
    otherwise = "correct its name, or the folder that you are in"
    step = meant(path.name, others, otherwise, text=lambda near: str(folder / near), cutoff=0.75)
    raise click.ClickException(f"there is no file {path}: {step}")


def check_folder(target: Path) -> None:
    """Raises ClickException where `target` cannot be written for want of a folder."""
    folder = target.parent
    if not target.name:
        raise click.ClickException("the file to write has no name")
    if not folder.is_dir():
        raise click.ClickException(f"{target}: there is no folder {folder}: make it first, or name another one")
    if not target.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise click.ClickException(f"{target}: folder {folder} may not be written to: name another one")


READERS = {"owner": 0o600, "group": 0o640, "all": 0o644}
"""Who may read a file that a command writes for others to look at, and its mode."""


@contextmanager
def replacing(target: Path, mode: int = 0o600, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """A file to write, with this mode from its first byte on, which takes the place of `target` once it is whole.

    Where `target` is no plain file (/dev/stdout, a pipe), it is written itself. `durable`: what was written survives a
    crash of the machine. Raises OSError; what was there before is then still there.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as opened:
            yield opened
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(6).hex()}.tmp")
    try:
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb") as opened:
            os.fchmod(file, mode)
            yield opened
            opened.flush()
            if durable:
                os.fsync(file)
        os.replace(unfinished, target)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(unfinished):
            error.filename = str(target)  # the user knows no other
        raise


def replace_file(target: Path, text: str, mode: int = 0o600) -> None:
    """Writes a file about somebody's jobs, whole or not at all; for its owner alone but for `mode`. Raises OSError."""
    with replacing(target, mode) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def moment(text: str, now: float, *, past: bool = False) -> float:
    """A time in seconds since the epoch: `+2h` from now, the next `18:30`, or a date. Raises ValueError.

    `past`: also `-2h` or `2h` before now, and the last `18:30`.
    """
    if past and re.fullmatch(r"(\d+(\.\d+)?[a-z]+)+", text):
        text = f"-{text}"
    today = datetime.fromtimestamp(now).astimezone()
    if text.startswith(("+", "-") if past else "+"):
        length = timedelta(seconds=parse_duration(text[1:]))
        return (today + length if text[0] == "+" else today - length).timestamp()
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        hour, minute = map(int, text.split(":"))
        then = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
        days = -1 if past and then > today else 1 if not past and then <= today else 0
        return (then + timedelta(days=days)).timestamp()
    found = datetime.fromisoformat(text.upper())
    return (found if found.tzinfo is not None else found.astimezone()).timestamp()


def local_time(at: float) -> datetime:
    """The local time of seconds since the epoch."""
    return datetime.fromtimestamp(at).astimezone()


class Moment(click.ParamType[float]):
    """A time on the command line, in seconds since the epoch: one to come, or a `past` one.

    `if_past`: what is said of a time to come that is over; "": nothing.
    """

    name = "time"

    def __init__(self, *, past: bool = False, if_past: str = "") -> None:
        self._past = past
        self._if_past = if_past

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The time. Fails with examples."""
        now = WallClock(0.0).now()
        try:
            at = moment(value.strip(), now, past=self._past)
        except (ValueError, OverflowError):
            example = "-2h, 18:30, 2026-05-01" if self._past else "+2h, 18:30"
            self.fail(f"{value!r} is no time: give {example} or 2026-05-01T08:00", param, ctx)
        if self._if_past and at < now:
            self.fail(f"{value!r} is past: {self._if_past}", param, ctx)
        return at


class Finite(click.FloatRange):
    """A range of numbers that refuses NaN, which no bound keeps out."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class Seconds(Finite):
    """A duration on the command line in seconds: `90`, `1.5`, or with units, `90s`, `45min`, `1h30m`."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = -math.inf
        try:
            value = parse_duration(value) if number == -math.inf else number
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a number of seconds, nor a time like 90s, 5m or 1h30m", param, ctx)
        return super().convert(value, param, ctx)
