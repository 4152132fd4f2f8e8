"""`hpcdl daemon start`, `stop` and `status`.

Processes are started and stopped in hpcdl/daemon/launch.py; here are the options, and what the user reads.
"""

from pathlib import Path
from typing import Any

import click

from hpcdl.cli.job_row import connect, duration_text
from hpcdl.cli.output import Column, Output, Row, escape, outputs_as, print_fields, print_json, print_table, say
from hpcdl.client import ClientError, DaemonAway
from hpcdl.core.model.units import count, fold_nodes
from hpcdl.wire.last_start import start_command, start_step


@click.group()
def daemon() -> None:
    """Start, stop or look at the daemon of HPCDL_HOME."""


def _node_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from hpcdl.config.settings import SETTINGS

    form = SETTINGS["node_name"].form
    if value is not None and form is not None and not form.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a node's name: letters, digits, . _ - only", ctx, param)
    return value


@daemon.command(short_help="Start the daemon and the agent of this node.")
@click.option("--foreground", is_flag=True, help="Stay attached to this terminal; Ctrl-C stops it.")
@click.option("--emulate-gpus", type=click.IntRange(1, 1024), metavar="N", help="Give this node N emulated GPUs.")
@click.option("--node", metavar="NAME", callback=_node_name, help="This node's name.  [default: the host's]")
@click.option("--accept-loss", is_flag=True, help="Go on with a ledger that has lost events, without their jobs.")
@click.option("--moved", is_flag=True, help="This folder was moved from another file system or machine: jobs go on.")
@outputs_as("Its pid only.")
def start(
    ctx: click.Context,
    foreground: bool,
    emulate_gpus: int | None,
    node: str | None,
    accept_loss: bool,
    moved: bool,
    output: Output,
) -> None:
    """Start the daemon and the agent of this node, in the background.

    It returns when both are ready, however long a large ledger takes: then it prints what it waits for, and Ctrl-C
    leaves the daemon at it. Jobs of an earlier daemon of the same folder go on.
    """
    from hpcdl.daemon import launch

    home: Path = ctx.find_root().obj
    answer = launch.start(home, emulate_gpus, node, foreground, accept_loss, moved)
    if foreground:
        ctx.exit(answer["exit_code"])
    if "note" in answer:
        click.echo(f"hpcdl: {answer['note']}", err=True)
    _print_daemon(answer, output, f"started on {home}")
    from hpcdl.cli.doctor.file_system import told_at_start

    if told := told_at_start(home):
        say(told)
    try:
        client = connect(ctx)
        found, batch = client.get("/v1/nodes")["nodes"], client.get("/v1/status").get("batch")
    except ClientError:
        return  # it is gone again: the next command says so
    came = answer.get("node") in (None, *answer["nodes"])  # else the note has said that its agent has not
    if came and not any(each["gpus"] for each in found if each["connected"]):
        names = fold_nodes([str(each["name"]) for each in found if each["connected"]]) or "this node"
        gone = [each for each in found if not each["connected"] and not each["lost"]]
        away = fold_nodes([str(each["name"]) for each in gone if not each.get("allocation")])  # batch nodes come and go
        known = f" (the node known here is {away}: --node {away})" if away else ""
        step = "hpcdl daemon stop, then hpcdl daemon start --emulate-gpus N emulates N of them"
        if batch and batch["pilots_max"]:  # a login node
            step = "jobs wait for pilots to bring some"
        say(f"no GPU was found on {names}{known}: {step}")


@daemon.command(short_help="Suspend every job, then stop daemon and agents.")
@click.option("--now", is_flag=True, help="End trainers at once; they resume from their last checkpoints.")
@outputs_as("Its pid only.")
def stop(ctx: click.Context, now: bool, output: Output) -> None:
    """Suspend every job within its grace period, then stop the daemon and all agents.

    Suspended jobs resume at the next start. Where none runs there is nothing to stop, and the exit code is 0.
    """
    from hpcdl.daemon import launch

    home: Path = ctx.find_root().obj
    try:
        answer = launch.stop(home, now)
    except DaemonAway as error:
        why = str(error).removesuffix(f": {start_step(home)}")
        if any(home.glob("lease.*")):  # it has died, or it hangs
            if why == str(error):
                raise
            step = f"{start_command(home)} takes them over, and a stop then saves them"
            raise DaemonAway(f"{why}, and it was not stopped: its jobs may go on; {step}") from None
        if output is Output.JSON:
            print_json({"daemon": None})
        say(f"no daemon is running for {home}: there is nothing to stop")
        return
    _print_daemon(answer, output, "stopped")
    if answer.get("left"):
        say(
            f"the agents of {fold_nodes(answer['left'])} were away: trainers there checkpoint and end by themselves, "
            "and go on after the next start"
        )


def _print_daemon(row: Row, output: Output, done: str) -> None:
    if not output.print_data({"daemon": row}, [row["pid"]]):
        print(escape(f"daemon (pid {row['pid']}) {done}"))


@daemon.command(short_help="Show the daemon, its agents and trainers.")
@outputs_as("Its pid only.")
def status(ctx: click.Context, output: Output) -> None:
    """Show the daemon, its agents and the trainers that run; exit 1 if there is no daemon."""
    try:
        answer = connect(ctx).get("/v1/status?fresh=1")
    except DaemonAway as error:
        if output is Output.JSON:
            nothing: dict[str, Any] = {"daemon": None, "agents": [], "trainers": [], "jobs": {}, "events": None}
            nothing |= {"notices": {"waiting": 0, "given_up": 0, "failing": []}, "batch": None, "pilots": 0}
            print_json(nothing | {"notes": [], "damaged": []})
        say(str(error))
        ctx.exit(1)
    row: Row = answer["daemon"]
    if not output.print_data(answer, [row["pid"]]):
        jobs = ", ".join(f"{number} {state}" for state, number in sorted(answer["jobs"].items()))
        print_fields(
            [
                ("daemon", f"pid {row['pid']} on {row['host']}, hpcdl {row['version']}, fence {row['fence']}"),
                ("up", duration_text(row["since_s"]) + (", stopping" if row.get("stopping") else "")),
                ("home", str(row["home"])),
                ("policy", str(row["policy"])),
                ("objective", str(row["objective"])),
                ("jobs", jobs or "none"),
                ("batch system", _batch_text(answer)),
                ("notifications", _notices_text(answer)),
                ("damaged", _damaged_text(answer)),
                ("events", str(answer["events"])),
            ]
        )
        _print_listed(_AGENTS, answer["agents"])
        _print_listed(_TRAINERS, answer["trainers"])


def _batch_text(answer: Row) -> str:
    """`slurm, asked each 30 s; 2 pilots`, with what does not work; "" where there is none."""
    batch = answer.get("batch")
    if not batch:
        return ""
    pilots = f"; {count(answer['pilots'], 'pilot')}" if answer.get("pilots") or batch["pilots_max"] else ""
    troubles = "".join(f"; {trouble}" for trouble in batch["troubles"])
    return f"{batch['kind']}, asked each {batch['interval_s']:g} s at most{pilots}{troubles}"


def _notices_text(answer: Row) -> str:
    """Destinations that do not take their notifications, and how many were given up; "" where all is well."""
    told = answer.get("notices") or {}
    over = f"{told['given_up']} given up (hpcdl notifications)" if told.get("given_up") else ""
    return "; ".join([*told.get("failing", ()), *([over] if over else ())])


def _damaged_text(answer: Row) -> str:
    """Run folders that could not be read, and where they are kept; "" where there are none."""
    found = [f"{each['path']} on {each['node']}" for each in answer.get("damaged", ())]
    return f"{count(len(found), 'run folder')}: {', '.join(found[:3])}" if found else ""


def _print_listed(columns: tuple[Column, ...], rows: list[Row]) -> None:
    if rows:
        print()
        print_table(columns, rows)


_AGENTS = (
    Column("AGENT", lambda row: str(row["pid"]), right=True),
    Column("NODE", lambda row: str(row["node"])),
    Column("CONNECTED", lambda row: "yes" if row.get("connected") else "no"),
)
_TRAINERS = (
    Column("TRAINER", lambda row: str(row["pid"]), right=True),
    Column("JOB", lambda row: f"{row['job']}.{row.get('incarnation', '?')}", right=True),
    Column("NODE", lambda row: str(row.get("node", ""))),
    Column("SUPERVISOR", lambda row: str(row.get("supervisor", "")), right=True),
)
