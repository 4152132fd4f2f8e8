"""Numbers of hundreds of digits, NUL and the like, wherever a command reads a value: one line says what is wrong."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from hpcdl.batch.options import BadLine, NotForHpcdl
from hpcdl.batch.script import SubmitCommand, commands
from hpcdl.cli.root import cli
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon

LONG = "9" * 400
ODD = (
    LONG, "9" * 5000, f"{LONG}:00", f"{LONG}-{LONG}", f"1-{LONG}:00:00", f"{LONG}G", f"{LONG}s", f"1:{LONG}",
    f"0.{LONG}",
    "1e400", "nan", "-inf", "a\0b", "\0", "\u0663", "-1", "[", f"x[1-{LONG}]", f"x[1-3]%{LONG}", f"gpu:{LONG}",
    f"afterok:{LONG}", f"done({LONG})", f"USR1@{LONG}", f"num={LONG}:gmem={LONG}", f"span[ptile={LONG}]", "\udcff",
    f"select[mem>{LONG}]", "{", "*" * 400, "\u00b2", f"n1:{LONG}", f"{LONG}x{LONG}", f"2026-01-01T{LONG}", f"+{LONG}d",
)  # fmt: skip
SHARE = 40  # so many times fewer of them go all the way of a submit


def odd_lines(command: SubmitCommand) -> Iterator[bytes]:
    for name in command.options:
        option = f"--{name}=" if command.name == "sbatch" else f"-{name} "
        for value in ODD:
            yield f"#!/bin/sh\n{command.mark} {option}{value}\nsrun --gpus={value} x\n".encode(
                "utf-8", "surrogateescape"
            )


@pytest.mark.parametrize("command", commands(), ids=lambda each: each.name)
def test_a_line_of_a_batch_script(fake: FakeDaemon, hpcdl: Run, tmp_path: Path, command: SubmitCommand) -> None:
    script = tmp_path / "job.sh"
    for number, content in enumerate(odd_lines(command)):
        with suppress(BadLine, NotForHpcdl):  # and nothing else
            command.read("job.sh", content, ())
        if number % SHARE == 0 or (b"\0" in content and number % 10 == 0):
            script.write_bytes(content)
            done = hpcdl("submit", script)
            assert "unexpected" not in done.err, content[:200]
            assert len(done.err) < 4000


def params_of(group: click.Command, path: str = "hpcdl") -> Iterator[tuple[str, click.Parameter]]:
    """Every option and argument that takes a value, also of the commands below."""
    for param in group.params:
        if not (isinstance(param, click.Option) and (param.is_flag or param.count)):
            yield f"{path} {param.name}", param
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from params_of(command, f"{path} {name}")


def test_a_value_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    params = dict(params_of(cli))
    assert len(params) > 100
    for value in (each for each in ODD if "\0" not in each):  # no command line can have it
        for where, param in params.items():
            with click.Context(cli, obj=tmp_path) as context, suppress(click.ClickException, BadLine, OSError):
                try:
                    param.type_cast_value(context, (value,) if param.multiple or param.nargs != 1 else value)
                except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
                    pytest.fail(f"{where} {value[:40]!r}: {error!r:.200}")


@pytest.mark.parametrize(
    "option", ["cwd", "checkpoint-dir", "container", "output", "error", "model", "burst-plan", "name"]
)
def test_an_empty_option_of_submit_is_refused(fake: FakeDaemon, hpcdl: Run, option: str) -> None:
    """As `--checkpoint-dir "$UNSET"` gives it: the default is not what was meant."""
    done = hpcdl("submit", f"--{option}", "", "--", "true")
    assert done.code in (1, 2)
    assert len(done.err.splitlines()) <= 2
    assert fake.world.jobs == {}


@pytest.mark.parametrize("what", ["", ":0"])
def test_a_node_without_a_name_is_not_avoided(fake: FakeDaemon, hpcdl: Run, what: str) -> None:
    done = hpcdl("avoid", what)
    assert done.code == 2
    assert f"{what!r} names no node: hpcdl nodes lists them" in done.err
    assert not any(method == "POST" for method, _, _ in fake.requests)
