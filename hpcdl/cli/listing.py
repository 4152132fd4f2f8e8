"""`hpcdl ls`, `show`, `why` and `nodes`: what the daemon knows, as it is now."""

import shlex
from pathlib import Path

import click

from hpcdl.cli.output import Column, Output, Row, outputs, print_fields, print_ids, print_json, print_table, say
from hpcdl.cli.rows import (
    JOB_COLUMNS,
    JOB_ID,
    asked_text,
    connect,
    duration_text,
    moment_text,
    placement_text,
    step_text,
)
from hpcdl.client import path_with
from hpcdl.core.units import fold_nodes


@click.command()
@click.option("-a", "--all", "every", is_flag=True, help="Finished jobs too.")
@outputs
@click.pass_context
def ls(ctx: click.Context, every: bool, output: Output) -> None:
    """List the jobs that are not finished, oldest first.

    GPUS is what a job holds now, over what it asked for (1:4, at least 1 and at most 4; 4:, at least 4; 2x4, 4 on each
    of 2 nodes). STEP is the last one that was reported, so it may be a monitor interval (10 s) old. ETA is
    measured, so it needs half a minute of training, except for jobs with a profile.
    """
    answer = connect(ctx).get(path_with("/v1/jobs", all=1 if every else None))
    rows = answer["jobs"]
    if output is Output.JSON:
        print_json(answer)
    elif output is Output.QUIET:
        print_ids([row["id"] for row in rows])
    elif rows:
        print_table(JOB_COLUMNS, rows)
    else:
        say("no jobs: hpcdl submit -- COMMAND" if every else "no jobs (finished ones: hpcdl ls --all)")


@click.command()
@click.argument("job", type=JOB_ID)
@outputs
@click.pass_context
def show(ctx: click.Context, job: int, output: Output) -> None:
    """Show one job: what was asked, where it stands, its incarnations and its log files."""
    answer = connect(ctx).get(f"/v1/jobs/{job}")
    row = answer["job"]
    if output is Output.JSON:
        print_json(answer)
    elif output is Output.QUIET:
        print_ids([row["id"]])
    else:
        from hpcdl.cli.logs import log_files

        home: Path = ctx.find_root().obj
        _print_job(row, row.get("log_files") or [str(file.path) for file in log_files(home, job)])


def _print_job(row: Row, logs: list[str]) -> None:
    spec: Row = row.get("spec") or {}
    ending = ", ".join(str(row[key]) for key in ("cause", "detail") if row.get(key))
    finished = row.get("finished_at") is not None
    gpus = asked_text(row)
    asked = (
        f"{gpus} {'GPU' if gpus == '1' else 'GPUs'}, grace {duration_text(spec.get('grace_s'))}, "
        f"signal {spec.get('signal', '?')}"
    )
    print_fields(
        [
            ("job", str(row["id"])),
            ("name", str(row.get("name", ""))),
            ("user", str(row.get("user") or "")),
            ("state", str(row.get("state", "")) + (" (held: hpcdl resume lifts it)" if row.get("held") else "")),
            ("reason", str(row.get("reason") or "")),
            ("command", shlex.join(map(str, spec.get("command", ())))),
            ("cwd", str(spec.get("cwd") or "")),
            ("asked", asked),
            ("after", " ".join(map(str, spec.get("after") or ()))),
            ("profile", str(row.get("profile") or "")),
            ("placement", f"{placement_text(row.get('placement'))} {row.get('role') or ''}".strip()),
            ("step", step_text(row)),
            ("saved step", "" if row.get("saved_step") is None else str(row["saved_step"])),
            ("checkpoints", str(spec.get("checkpoint_dir") or "")),
            ("ETA", "" if row.get("eta_s") is None else duration_text(row["eta_s"])),
            ("submitted", moment_text(row.get("submitted_at"))),
            ("started", moment_text(row.get("started_at"))),
            ("finished", moment_text(row.get("finished_at"))),
            ("waited", "" if row.get("wait_s") is None else duration_text(row["wait_s"])),
            ("JCT", "" if row.get("jct_s") is None else duration_text(row["jct_s"])),
            ("suspends", str(row.get("suspends") or "")),
            ("failures", str(row.get("failures") or "")),
            ("retries", f"{row.get('retries_used', 0)} of {spec['retries']}" if spec.get("retries") else ""),
            ("ended by" if finished else "last ended by", ending),
            ("exit code", str(row["exit_code"]) if finished and row.get("exit_code") is not None else ""),
        ]
    )
    incarnations = [each for each in row.get("incarnations") or () if isinstance(each, dict)]
    if incarnations:
        print()
        print_table(
            (
                Column("INCARNATION", lambda each: str(each.get("number", "")), right=True),
                Column("STATE", lambda each: str(each.get("state", "")), coloured=True),
                Column("NODES", lambda each: fold_nodes(each.get("nodes") or ()) or "-", shrinks=True),
                Column("STARTED", lambda each: moment_text(each.get("started_at")) or "-"),
                Column("TRAINS SINCE", lambda each: moment_text(each.get("ready_at")) or "-"),
                Column("ASKED TO SUSPEND FOR", lambda each: _known(each.get("purpose"))),
            ),
            incarnations,
        )
    if logs:
        print()
        print_fields([("log", path) for path in logs])


def _known(value: object) -> str:
    return "-" if value is None else str(value)


@click.command()
@click.argument("job", type=JOB_ID)
@outputs
@click.pass_context
def why(ctx: click.Context, job: int, output: Output) -> None:
    """Say in words and numbers why a job is where it is."""
    answer = connect(ctx).get(f"/v1/jobs/{job}/why")
    if output is Output.JSON:
        print_json(answer)
    elif output is Output.QUIET:
        print_ids([answer["job"]])
    else:
        reason = f": {answer['reason']}" if answer.get("reason") else ""
        print_fields([(f"job {answer['job']}", f"{answer['state']}{reason}")])
        foreseen = answer.get("forecast") or {}
        details = [*(answer.get("details") or ()), *([foreseen["text"]] if foreseen.get("text") else ())]
        print_fields([(" ", str(detail)) for detail in details])


@click.command()
@outputs
@click.pass_context
def nodes(ctx: click.Context, output: Output) -> None:
    """List the nodes, a line for each GPU: its state and the job that holds it."""
    answer = connect(ctx).get("/v1/nodes")
    if output is Output.JSON:
        print_json(answer)
    elif output is Output.QUIET:
        print_ids([node["name"] for node in answer["nodes"]])
    elif answer["nodes"]:
        lines = [{"of": node, "gpu": gpu} for node in answer["nodes"] for gpu in node.get("gpus") or [{}]]
        print_table(_GPU_COLUMNS, lines)
        away = [str(node["name"]) for node in answer["nodes"] if _node_state({"of": node}) == "away"]
        if away:
            say(
                f"no agent is connected on {fold_nodes(away)}; trainers there go on for a while: hpcdl agent starts "
                "one (hpcdl daemon start does where the daemon runs)"
            )
    else:
        say("no nodes: an agent registers its node when it starts (hpcdl agent)")


def _holder(line: Row) -> str:
    holder = line["gpu"].get("holder")
    return f"{holder['job']}.{holder['incarnation']}" if holder else "-"


def _node_state(line: Row) -> str:
    node = line["of"]
    return "lost" if node.get("lost") else "connected" if node.get("connected") else "away"


_GPU_COLUMNS = (
    Column("NODE", lambda line: str(line["of"]["name"])),
    Column("AGENT", _node_state),
    Column("GPU", lambda line: _known(line["gpu"].get("index")), right=True),
    Column("STATE", lambda line: str(line["gpu"].get("state", "-"))),
    Column("JOB", _holder, right=True),
    Column("NAME", lambda line: str(line["gpu"].get("name", "")), shrinks=True),
    Column("DETAIL", lambda line: str(line["gpu"].get("detail") or line["of"].get("reason") or ""), shrinks=True),
)
