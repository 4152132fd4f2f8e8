"""What shells are offered: by click's protocol for all three, and by a real bash (and zsh and fish, where they are)."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.cli.completion import PATIENCE, SHELLS, script
from hpcdl.cli.root import COMMANDS, COMPLETE, cli
from hpcdl.wire.access import AccessFile, write_access
from tests.cli.conftest import Run
from tests.cli.fake import TOKEN, FakeDaemon, row
from tests.cli.test_process import HEAVY, SOON_S, environment

Offered = Callable[[str], list[str]]


@pytest.fixture(params=SHELLS)
def offered(request: pytest.FixtureRequest, home: Path, monkeypatch: pytest.MonkeyPatch) -> Offered:
    """What a shell is offered for a line, as it is written to it."""
    from click.shell_completion import get_completion_class

    monkeypatch.setenv("HPCDL_HOME", str(home))
    monkeypatch.setenv(PATIENCE, str(SOON_S))

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", words[-1] if request.param == "fish" else str(len(words) - 1))
        kind = get_completion_class(request.param)
        assert kind is not None
        text = kind(cli, {}, "hpcdl", COMPLETE).complete()
        if request.param == "zsh":
            return text.split("\n")[1::3]
        return [each.partition(",")[2].partition("\t")[0] for each in text.split("\n") if each]

    return complete


def test_commands_and_options(offered: Offered) -> None:
    assert offered("hpcdl ")[: len(COMMANDS)] == list(COMMANDS)
    assert offered("hpcdl su") == ["submit", "suspend"]
    assert offered("hpcdl --ver") == ["--version"]
    assert "--follow" in offered("hpcdl logs --")
    assert offered("hpcdl daemon st") == ["start", "status", "stop"]
    assert offered("hpcdl completion ") == list(SHELLS)


def test_jobs_of_the_daemon(jobs: FakeDaemon, offered: Offered) -> None:
    assert offered("hpcdl cancel ") == ["1", "2"]
    assert offered("hpcdl cancel 1 ") == ["2"], "not the same again"
    assert offered("hpcdl why ") == ["1", "2", "3"], "of finished ones too"
    assert offered("hpcdl events --job ") == ["1", "2", "3"]
    assert offered("hpcdl show 3") == ["3"]
    assert offered("hpcdl show res") == ["resnet"]


def test_a_job_is_explained(jobs: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import FishComplete

    monkeypatch.setenv("HPCDL_HOME", str(home))
    monkeypatch.setenv(PATIENCE, str(SOON_S))
    monkeypatch.setenv("COMP_WORDS", "hpcdl cancel ")
    monkeypatch.setenv("COMP_CWORD", "")
    text = FishComplete(cli, {}, "hpcdl", COMPLETE).complete()
    assert text.split("\n") == ["plain,1\tRUNNING resnet", "plain,2\tQUEUED vgg\\x1b[31m\\nx"], "without its escapes"


def test_what_else_the_daemon_knows(fake: FakeDaemon, offered: Offered) -> None:
    fake.answers["/v1/profiles"] = (
        200,
        b'{"schema":1,"profiles":[{"name":"resnet50","learnt":false,"source":"MARBLE"}]}',
    )
    assert offered("hpcdl drain ") == ["n1"]
    assert offered("hpcdl config policy ") == ["marble", "fifo-exclusive"]
    assert offered("hpcdl config objective ") == ["makespan"]
    assert offered("hpcdl submit --profile R") == ["resnet50"]
    assert offered("hpcdl profile show ") == ["resnet50"]


def test_columns_states_and_formats(offered: Offered) -> None:
    assert offered("hpcdl ls --state susp") == ["SUSPENDING", "SUSPENDED"]
    assert offered("hpcdl ls --columns id,na") == ["id,name"]
    assert offered("hpcdl ls gpus --columns gpu,ut") == ["gpu,util"]
    assert offered("hpcdl ls --sort et") == ["eta"]
    assert offered("hpcdl ls --format l") == ["long"]
    assert offered("hpcdl ls g") == ["gpus"]


def test_without_a_daemon_nothing_is_offered(home: Path, offered: Offered, capfd: pytest.CaptureFixture[str]) -> None:
    assert offered("hpcdl cancel ") == []
    assert offered("hpcdl drain ") == []
    assert capfd.readouterr() == ("", "")


def test_a_daemon_that_is_silent_is_not_waited_for(
    fake: FakeDaemon, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.shell_completion import BashComplete

    certificate = json.loads((home / "access.json").read_text())["certificate"]
    with socket.create_server(("127.0.0.1", 0)) as listener:  # takes connections, and says nothing
        port = listener.getsockname()[1]
        write_access(home, AccessFile("d-fake", "127.0.0.1", port, certificate, TOKEN, pid=1, fence=1))
        monkeypatch.setenv("HPCDL_HOME", str(home))
        monkeypatch.setenv("COMP_WORDS", "hpcdl cancel ")
        monkeypatch.setenv("COMP_CWORD", "2")
        begun = time.monotonic()
        assert BashComplete(cli, {}, "hpcdl", COMPLETE).complete() == ""
        assert time.monotonic() - begun < 60.0, "half a second, on a machine with time"


def test_names_of_commands_are_offered_without_importing_them(home: Path) -> None:
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "import hpcdl.cli as c; sys.exit(c.main([]))"
    )
    env = environment(home, **{COMPLETE: "bash_complete", "COMP_WORDS": "hpcdl s", "COMP_CWORD": "1"})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["plain,submit", "plain,suspend", "plain,show", "plain,simulate"]
    loaded = set(done.stderr.split())
    assert "hpcdl.cli.root" in loaded
    assert not loaded & HEAVY - {"subprocess"}
    assert not [name for name in loaded if name.startswith("hpcdl.cli.") and name not in (
        "hpcdl.cli.root", "hpcdl.cli.output", "hpcdl.cli.submit_line",
    )]  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_printed(shell: str, hpcdl: Run) -> None:
    done = hpcdl("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert done.out == script(shell) + "\n"
    assert f"{COMPLETE}={shell}_complete" in done.out


def test_another_shell_is_refused(hpcdl: Run) -> None:
    done = hpcdl("completion", "csh")
    assert (done.code, done.err.count("\n")) == (2, 1)


# --- real shells ------------------------------------------------------------------------------------------------------


def shell(home: Path, folder: Path, *argv: str) -> list[str]:
    """What a shell prints, with an `hpcdl` on its PATH."""
    command = folder / "hpcdl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcdl "$@"\n')
    command.chmod(0o755)
    env = environment(home, PATH=f"{folder}:{os.environ['PATH']}", TERM="dumb", **{PATIENCE: str(SOON_S)})
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=2 * SOON_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


BASH = """
eval "$(hpcdl completion bash)"
offer() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _hpcdl_completion hpcdl
    echo "${COMPREPLY[*]}"
}
complete -p hpcdl
offer hpcdl canc
offer hpcdl cancel ""
offer hpcdl ls --state SUSPENDE
"""


def test_a_real_bash(jobs: FakeDaemon, tmp_path: Path) -> None:
    lines = shell(jobs.home, tmp_path, "bash", "--norc", "-c", BASH)
    assert lines[0].endswith("-F _hpcdl_completion hpcdl")
    assert lines[1:] == ["cancel", "1 2", "SUSPENDED"]


FISH = 'hpcdl completion fish | source; complete -C "hpcdl canc"; complete -C "hpcdl cancel "'


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_a_real_fish(jobs: FakeDaemon, tmp_path: Path) -> None:
    jobs.world.jobs[2] = row(2, name="vgg")
    lines = shell(jobs.home, tmp_path, "fish", "--no-config", "-c", FISH)
    assert lines == ["cancel\tEnd jobs for good.", "1\tRUNNING resnet", "2\tQUEUED vgg"]


ZSH = r"""
autoload -Uz compinit && compinit -u -D
eval "$(hpcdl completion zsh)"
compadd() { print -r -- "compadd ${completions[*]}"; }
_describe() { print -r -- "describe ${(P)3}"; }
words=(hpcdl cancel "") CURRENT=3
_hpcdl_completion
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_a_real_zsh(jobs: FakeDaemon, tmp_path: Path) -> None:
    jobs.world.jobs[2] = row(2, name="vgg")
    lines = shell(jobs.home, tmp_path, "zsh", "-f", "-c", ZSH)
    assert "1:RUNNING resnet" in "\n".join(lines)
    assert "2:QUEUED vgg" in "\n".join(lines)
