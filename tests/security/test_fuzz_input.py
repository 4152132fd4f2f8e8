"""Packets, files and command lines that nobody would write: one line that says what is wrong, and no traceback."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.agent.supervisor import packets
from hpcdl.agent.supervisor.start_file import BadStart
from hpcdl.agent.supervisor.start_file import decode as decode_start
from hpcdl.batch.site import SiteError, load_site
from hpcdl.cli import main
from hpcdl.cli.root import cli
from hpcdl.config.layers import ConfigError
from hpcdl.config.profiles import load_profiles
from hpcdl.config.settings import SETTINGS, load_config
from hpcdl.core.model.profile import ProfileError
from tests.security.fuzz import JSON, SCALARS, TEXTS, fuzzed


def refused_in_a_line(read: Callable[[], object], *errors: type[Exception]) -> bool:
    """Whether it is read, or refused by one of these errors with a message of bearable length. Others are raised."""
    try:
        read()
    except errors as error:
        return 0 < len(str(error)) < 4000
    return True


# --- the side channel -------------------------------------------------------------------------------------------------

PACKET_KEYS = (
    *("pid", "rank", "incarnation", "membership", "handler", "warm_s", "cuda", "gpus", "ok", "step", "total", "after"),
    *("samples", "metric", "path", "seconds", "final", "errno", "why", "address", "gpu_env", "grace_s", "by", "nodes"),
    *("ranks", "state", "id", "saving", "within_s"),
)
PACKET = st.fixed_dictionaries(
    {"v": st.sampled_from([1, 1, 1, 1, 2, None, "1"]), "type": st.sampled_from([*packets._KINDS, "", "x", None, 7])},
    optional=dict.fromkeys(PACKET_KEYS, SCALARS | JSON),
)


@fuzzed(60)
@given(raw=(PACKET | JSON).map(lambda body: json.dumps(body).encode()) | st.binary(max_size=80))
def test_packets(raw: bytes) -> None:
    assert refused_in_a_line(lambda: packets.parse(raw), packets.MalformedPacket, packets.WrongVersion)
    assert refused_in_a_line(lambda: decode_start(raw), BadStart)


@pytest.mark.parametrize(
    "raw", [b"[" * 60_000, b'{"v":1,"type":"done","step":' + b"9" * 6000 + b"}", b"{" * 65_000, b"\x00"]
)
def test_packets_by_hand(raw: bytes) -> None:
    with pytest.raises(packets.MalformedPacket):
        packets.parse(raw)
    with pytest.raises(BadStart):
        decode_start(raw)


# --- files ------------------------------------------------------------------------------------------------------------

ODD_LINES = (
    *(
        "- a",
        "&a [*a]",
        "!!python/object/apply:os.system [true]",
        "? x",
        "a: &b",
        "*b",
        "%YAML 9",
        "---",
        "{",
        "[",
        "\t",
    ),
    *("<<: {}", "!!binary x", "2001-99-99: 1", "0x: 0o9", "!!timestamp 99", "1_0: _1", "? [a]", "!<x> y", "a: !!int x"),
)
PAIRS = st.tuples(st.sampled_from([*SETTINGS, "submit", "x"]), SCALARS.map(repr) | TEXTS | st.sampled_from(ODD_LINES))
LINES = st.lists(PAIRS.map(": ".join) | st.sampled_from(ODD_LINES) | TEXTS, max_size=5).map("\n".join)


def profile_lines(name: str) -> st.SearchStrategy[str]:
    keys = [
        "profiles",
        "unit",
        "points",
        "times",
        "aliases",
        "spread",
        "1",
        "name",
        "settings",
        "pilots",
        "queues",
        "kind",
    ]
    return st.recursive(
        SCALARS, lambda inner: st.dictionaries(st.sampled_from(keys) | TEXTS, inner, max_size=4), max_leaves=10
    ).map(lambda body: json.dumps({name: body} if name else body, allow_nan=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("files") / "home"
    for each in (home, home / "profiles", home / "sites"):
        each.mkdir(mode=0o700)
    return home


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    path.chmod(0o600)
    return path


@fuzzed(40)
@given(text=LINES | profile_lines(""))
def test_settings(folder: Path, text: str) -> None:
    path = written(folder / "config.yaml", text)
    try:
        assert refused_in_a_line(lambda: load_config(folder, environ={}, site=Path("/nonexistent")), ConfigError)
    finally:
        path.unlink()


@fuzzed(60)
@given(name=st.sampled_from(sorted(SETTINGS)), text=TEXTS)
def test_settings_of_the_environment(folder: Path, name: str, text: str) -> None:
    environ = {f"HPCDL_{name.upper()}": text}
    assert refused_in_a_line(lambda: load_config(folder, environ=environ, site=Path("/nonexistent")), ConfigError)


@fuzzed(40)
@given(text=LINES | profile_lines("profiles") | profile_lines(""))
def test_profiles(folder: Path, text: str) -> None:
    path = written(folder / "profiles" / "x.yaml", text)
    try:
        assert refused_in_a_line(lambda: load_profiles([folder / "profiles"]), ProfileError)
    finally:
        path.unlink()


@fuzzed(40)
@given(text=LINES | profile_lines(""))
def test_sites(folder: Path, text: str) -> None:
    path = written(folder / "sites" / "x.yaml", text)
    try:
        assert refused_in_a_line(lambda: load_site(str(path), 0, folder), SiteError)
    finally:
        path.unlink()


# --- command lines ----------------------------------------------------------------------------------------------------

LONG_RUNNING = {("demo",), ("agent",), ("daemon", "start"), ("allocation",), ("profile", "run"), ("simulate", "papers")}
"""They start programs, or compute for minutes."""

# No slash and no ~: what is written is written into the folder that the test runs in.
PLAIN = (
    *(
        "",
        "-",
        "--",
        "0",
        "1",
        "-1",
        "1:4",
        "4:1",
        "2x4",
        "nan",
        "1e9",
        "n1",
        "n[1-3]",
        "n[3-1]",
        "1-5",
        "a=b",
        "=",
        "job",
    ),
    *("x.yaml", "..", ".", "12:00", "1h", "é\u202e", "\x1b[31m", "a\nb", "\udcff", "%", "*", "[", "resnet50", "jobs"),
    *("nodes", "marble", "show", "ls"),
)
LETTERS = st.characters(exclude_characters="/~\0", exclude_categories=["Cs"])
VALUES = st.one_of(st.sampled_from(PLAIN), st.integers(-5, 1 << 70).map(str), st.text(LETTERS, max_size=12))


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        here = (*path, name)
        if here in LONG_RUNNING:
            continue
        yield here, command
        if isinstance(command, click.Group):
            yield from leaves(command, here)


ALL = dict(leaves(cli))


@st.composite
def command_line(draw: Callable[[Any], Any]) -> list[str]:
    path = draw(st.sampled_from(sorted(ALL)))
    options = [name for param in ALL[path].params if isinstance(param, click.Option) for name in param.opts]
    # Those that go on for ever, or run what is named.
    options = [name for name in options if name not in ("--watch", "-w", "--follow", "-f", "--file", "--notify")]
    words = draw(st.lists(st.sampled_from(options or ["--json"]) | VALUES, max_size=5))
    return [*path, *words]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cli")
    before, stdin = os.getcwd(), os.dup(0)
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    yield folder
    os.dup2(stdin, 0)
    os.close(null)
    os.close(stdin)
    os.chdir(before)


def run(home: Path, argv: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process, with no daemon there."""
    buffers = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(raw, "utf-8") for raw in buffers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCDL_HOME", str(home))
        patch.setenv("HOME", str(home.parent))
        patch.setenv("COLUMNS", "100")
        patch.delenv("HPCDL_DEBUG", raising=False)
        patch.setattr(sys, "stdin", io.StringIO())
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            code = main(argv)
        except SystemExit as error:
            code = int(error.code or 0)
        out.flush()
        err.flush()
    said = [raw.getvalue().decode() for raw in buffers]
    assert code in (0, 1, 2), (argv, code, said)
    assert "Traceback" not in said[1], (argv, said)
    assert "HPCDL_DEBUG" not in said[1], (argv, said)  # what is said of a fault of ours
    return code, said[0], said[1]


@fuzzed(40)
@given(argv=command_line())
def test_command_lines_without_a_daemon(empty: Path, argv: list[str]) -> None:
    home = empty / "home"
    code, _, said = run(home, argv)
    assert code == 0 or said, argv
    if argv[0] not in ("submit", "doctor", "profile"):
        assert not home.exists() or {path.name for path in home.iterdir()} <= {"spool", "scripts", "profiles"}, argv


JOB_KEYS = st.sampled_from(["jobs", "defaults", "command", "name", "gpus", "nodes", "env", "sweep", "after", "schema"])
JOBS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(JOB_KEYS, inner), max_leaves=10
)


@fuzzed(40)
@given(text=LINES | JOBS.map(json.dumps))
def test_files_of_jobs(empty: Path, text: str) -> None:
    path = written(empty / "jobs.yaml", text)
    try:
        code, _, said = run(empty / "none", ["submit", "--no-spool", "--file", str(path)])
        assert (code in (1, 2), len(said.splitlines())) == (True, 1)
    finally:
        path.unlink()
    assert not (empty / "none").exists()
