"""The command `hpcdl` itself: its commands, and how every error reaches the user.

A command's module is imported only when it runs, so this file imports nothing that most of them do not need. No
traceback is ever printed, unless HPCDL_DEBUG is set.
"""

import errno
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hpcdl import __version__
from hpcdl.cli.output import say, stop_writing
from hpcdl.cli.submit_line import submit_line
from hpcdl.wire import last_start

SECTIONS: dict[str, dict[str, tuple[str, str, str]]] = {
    "Jobs": {
        "init": ("hpcdl.cli.init.command", "init", "Write a training script and jobs to begin with."),
        "submit": ("hpcdl.cli.submit.command", "submit", "Queue a training job."),
        "run": ("hpcdl.cli.run", "run", "Run a job in the foreground, and return its exit code."),
        "cancel": ("hpcdl.cli.jobs", "cancel", "End jobs for good."),
        "suspend": ("hpcdl.cli.jobs", "suspend", "Checkpoint jobs, free their GPUs and hold them."),
        "resume": ("hpcdl.cli.jobs", "resume", "Let held jobs run again."),
        "hold": ("hpcdl.cli.jobs", "hold", "Keep waiting jobs from starting."),
        "release": ("hpcdl.cli.jobs", "release", "Let held jobs start."),
        "priority": ("hpcdl.cli.jobs", "priority", "Give jobs another priority."),
        "annotate": ("hpcdl.cli.jobs", "annotate", "Write your own KEY=VALUE about jobs."),
        "retry": ("hpcdl.cli.jobs", "retry", "Queue failed or cancelled jobs again."),
        "wait": ("hpcdl.cli.jobs", "wait", "Wait until jobs are finished."),
        "logs": ("hpcdl.cli.logs", "logs", "Print the output of jobs."),
        "exec": ("hpcdl.cli.exec", "execute", "Run a command beside a running job, on its node."),
        "attach": ("hpcdl.cli.exec", "attach", "Open a shell beside a running job, on its node."),
        "drill": ("hpcdl.cli.drill", "drill", "Test that a running job survives preemption."),
    },
    "What is going on": {
        "ls": ("hpcdl.cli.ls", "ls", "List the jobs, the nodes or the GPUs."),
        "top": ("hpcdl.cli.top", "top", "Watch daemon, GPUs and jobs in the terminal."),
        "page": ("hpcdl.cli.page", "page", "Write a web page of what goes on now."),
        "web": ("hpcdl.cli.web.command", "web", "Serve the pages live to your browser."),
        "show": ("hpcdl.cli.show", "show", "Show everything about one job."),
        "why": ("hpcdl.cli.show", "why", "Say why a job is where it is."),
        "nodes": ("hpcdl.cli.show", "nodes", "List the nodes and who holds their GPUs."),
        "events": ("hpcdl.cli.events", "events", "List what happened."),
        "timeline": ("hpcdl.cli.events", "timeline", "Draw the GPUs by job over time."),
        "report": ("hpcdl.cli.report", "report", "Show where all GPU-hours went."),
        "notifications": ("hpcdl.cli.notices", "notifications", "List the notifications not delivered yet."),
        "metrics": ("hpcdl.cli.metrics", "metrics", "Print numbers for Prometheus."),
    },
    "Nodes and the batch system": {
        "drain": ("hpcdl.cli.nodes", "drain", "Have jobs leave nodes, now or by a time."),
        "undrain": ("hpcdl.cli.nodes", "undrain", "Give drained nodes to jobs again."),
        "avoid": ("hpcdl.cli.nodes", "avoid", "List or choose the GPUs and nodes that are excluded."),
        "holes": (
            "hpcdl.cli.holes.command",
            "holes",
            "List the backfill holes, or record for weeks what idles.",
        ),
        "pilots": ("hpcdl.cli.pilots", "pilots", "List or cancel the batch jobs that hold idle nodes for hpcdl."),
        "allocation": ("hpcdl.cli.allocation", "allocation", "Run in a batch job: daemon and agents."),
    },
    "The daemon": {
        "daemon": ("hpcdl.cli.daemon", "daemon", "Start, stop or look at the daemon."),
        "agent": ("hpcdl.cli.agent", "agent", "Run the agent of this node in the foreground."),
        "config": ("hpcdl.cli.config", "config", "Show the settings; set the daemon's policy and objective."),
        "ledger": ("hpcdl.cli.ledger", "ledger", "Check, export, back up or shrink the ledger."),
        "doctor": (
            "hpcdl.cli.doctor.command",
            "doctor",
            "Check what hpcdl needs here, and what the batch system can do.",
        ),
        "completion": ("hpcdl.cli.completion", "completion", "Print what makes your shell complete commands and jobs."),
    },
    "Plan and compare": {
        "profile": ("hpcdl.cli.profile.command", "profile", "Measure how a script scales, and make a profile of it."),
        "simulate": (
            "hpcdl.cli.simulate.command",
            "simulate",
            "Replay a workload under several policies, and compare them.",
        ),
        "replay": ("hpcdl.cli.replay", "replay", "Replay a trace of idle nodes with elastic trainers."),
        "allocate": ("hpcdl.cli.allocate", "allocate", "Give nodes to elastic trainers, optimally."),
        "burst": ("hpcdl.cli.burst.command", "burst", "Plan burst-parallel training: GPUs for each layer."),
        "demo": ("hpcdl.cli.agent", "demo", "Run a paper's job set under two policies and compare them."),
    },
}
"""As `--help` lists them: command -> module, name in it, one line of help, which stands here so that it need not be
imported for that."""

COMMANDS = {name: command for commands in SECTIONS.values() for name, command in commands.items()}

HIDDEN: dict[str, tuple[str, str]] = {
    "pilot": ("hpcdl.cli.allocation", "pilot"),
    "notices": ("hpcdl.cli.notices", "notifications"),
}
"""Commands that only programs run, and old names."""

_MEANT = {
    word: meant
    for meant, words in {
        "--help": "help",
        "--version": "version",
        "daemon stop, then hpcdl daemon start": "restart",
        "daemon start": "start",
        "daemon stop": "stop",
        "daemon status": "status info",
        "config policy": "policy",
        "config objective": "objective",
        "run": "srun",
        "submit": "sbatch bsub qsub",
        "ls": "list job jobs ps queue squeue bjobs qstat",
        "ls nodes": "sinfo bhosts node",
        "ls gpus": "gpus nvidia-smi",
        "show": "describe scontrol",
        "why": "explain",
        "cancel": "kill rm delete bkill qdel",
        "suspend": "pause bstop",
        "resume": "continue",
        "retry": "requeue rerun",
        "priority": "renice nice prio prioritize prioritise modify bmod qalter",
        "attach": "ssh",
        "logs": "log",
        "logs -f": "tail",
        "report": "sacct",
        "config": "set",
        "page": "html",
        "web": "dashboard serve",
        "metrics": "prometheus",
        "config show": "settings",
    }.items()
    for word in words.split()
}
"""What people try first, and what it is called here."""

_OPTION_MEANT = {
    word: meant
    for meant, words in {
        "after": "dependency depend depends depends-on wait-for",
        "cpus": "cpus-per-task cpus-per-gpu ncpus",
        "cwd": "chdir workdir work-dir working-dir",
        "follow": "watch",
        "gpus": "gpu gres gpus-per-node gpus-per-task ngpus num-gpus nproc-per-node",
        "lines": "tail last head num-lines",
        "mem": "memory mem-per-node mem-per-cpu mem-per-gpu",
        "name": "job-name jobname",
        "nodes": "nnodes num-nodes node",
        "notify": "mail-user mail-type mail email",
        "output": "out stdout",
        "error": "err stderr",
        "time": "walltime wall-time time-limit timelimit timeout runtime",
    }.items()
    for word in words.split()
}
"""The same of options, without their dashes."""

COMPLETE = "_HPCDL_COMPLETE"
"""The variable by which a shell asks for what may come next; click answers where it is set."""

_STEPS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT), "make room (hpcdl doctor says how much is free), then run the command again"
    ),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP), "correct the path"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "name another place, or see to it that you may use this one"
    ),
}
"""What may help where the system refuses a command something."""

USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count
PIPE_CLOSED = 141  # 128 + SIGPIPE


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS and cmd_name not in HIDDEN:
            return None
        module, name = HIDDEN[cmd_name] if cmd_name in HIDDEN else COMMANDS[cmd_name][:2]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and name not in HIDDEN and not name.startswith("-") and not ctx.resilient_parsing:
            from hpcdl.core.model.units import meant

            word, known = (_MEANT[name], [_MEANT[name]]) if name in _MEANT else (name, COMMANDS)
            hint = meant(word, known, "", text="hpcdl {}".format, most=3)
            raise click.UsageError(f"No such command {name!r}{hint and f': {hint}'}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=line) for name, (_, _, line) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, _, line) in commands.items()], col_max=13)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            stop_writing()
            raise click.exceptions.Exit(PIPE_CLOSED) from None
        return result


def home_folder(text: str | None) -> Path:
    """The daemon's folder of that name, or the default. Raises RuntimeError where the user's home is not known."""
    folder = Path(text).expanduser().absolute() if text else Path.home() / ".hpcdl"
    # A home that is a link, to scratch say, is its user's own wish; whose the folder behind it is, is checked as ever.
    return folder.resolve() if os.path.islink(folder) else folder


def _home(ctx: click.Context, param: click.Parameter, value: str | None) -> Path:
    try:
        return home_folder(value)
    except RuntimeError:
        raise click.UsageError("your home folder is not known: set HPCDL_HOME", ctx) from None


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="HPCDL_HOME names the folder of a daemon, as --home does.",
)
@click.option(
    "--home", envvar="HPCDL_HOME", metavar="DIR", callback=_home, help="The daemon's folder.  [default: ~/.hpcdl]"
)
@click.version_option(__version__, "-V", "--version", prog_name="hpcdl", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, home: Path) -> None:
    """Share the GPUs of an HPC allocation well among deep-learning jobs.

    Start with `hpcdl daemon start`, then `hpcdl submit -- COMMAND`.
    """
    ctx.obj = home
    if ctx.invoked_subcommand != "doctor" and os.path.exists(home) and not os.path.isdir(home):
        raise click.ClickException(f"{home} is not a folder: name the daemon's folder with --home or HPCDL_HOME")
    if ctx.invoked_subcommand is None:
        from hpcdl.cli.first_screen import print_first_screen

        print_first_screen(home)


def _plain(error: click.UsageError) -> str:
    """The message of an error in plain words, with the commands there are where none is near."""
    message = error.format_message().rstrip(".")
    for theirs, ours in (("integer", "whole number"), ("float", "number")):
        message = re.sub(rf"is not a valid {theirs}( range)?$", f"is not a {ours}", message)
    if message.startswith("No such option '--home'"):
        return "--home stands before the command: hpcdl --home DIR ls, for example"
    command = error.ctx.command if error.ctx else None
    if isinstance(error, click.NoSuchOption) and command is not None:
        from hpcdl.core.model.units import meant

        name = error.option_name.lstrip("-")
        known = [each[2:] for param in command.params for each in param.opts if each.startswith("--")]
        word = _OPTION_MEANT.get(name, name)
        hint = meant(word if word in known else name, known, "", text="--{}".format, most=1 if word in known else 2,
                     cutoff=0.7)  # fmt: skip
        return f"No such option {error.option_name!r}{hint and f': {hint}'}"
    if near := re.search(r"\. \(?Did you mean (?:one of: )?(.*?)\?\)?$", message):
        names = " or ".join(re.findall("'(.*?)'", near[1]))
        return f"{message[: near.start()]}: did you mean {names}?"
    if message.startswith("No such command") and isinstance(command, click.Group) and command is not cli:
        assert error.ctx is not None
        return f"{message}: there are {', '.join(command.list_commands(error.ctx))}"
    return message


def _asked_for(words: Sequence[str]) -> str:
    """The command that was typed, for errors that click raises before it knows: an option without its argument."""
    return " ".join(["hpcdl", *[word for word in words if word in COMMANDS][:1]])


def _open_all() -> None:
    """Open /dev/null for streams that were closed (`>&-`): else the next file opened would be stdout to others."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code: 0, 1 for an error, 2 for wrong usage, or what the command says (`wait`)."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_all()
    last_start.submit_line = submit_line
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names that are not UTF-8 must not end us
    try:
        code = cli.main(
            args=None if argv is None else list(argv), prog_name="hpcdl", complete_var=COMPLETE, standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else _asked_for(sys.argv[1:] if argv is None else argv)
        say(f"{_plain(error)} (see {path} --help)")
        return USAGE
    except click.ClickException as error:
        say(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        stop_writing()
        return PIPE_CLOSED
    except OSError as error:
        if os.environ.get("HPCDL_DEBUG"):
            raise
        stop_writing()
        name = f"{error.filename}: " if error.filename else ""
        step = _STEPS.get(error.errno or 0, "correct that, then run the command again")
        say(f"{name}{error.strerror or error}: {step}")
        return 1
    except Exception as error:
        if os.environ.get("HPCDL_DEBUG"):
            raise
        ours = type(error).__module__.startswith("hpcdl.")  # their messages are lines for the user
        say(str(error) if ours else f"unexpected {type(error).__name__}: {error} (HPCDL_DEBUG=1 shows where)")
        return 1
    return code if isinstance(code, int) else 0
