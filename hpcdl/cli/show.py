"""`hpcdl show`, `why` and `nodes`: one job, and the nodes with their GPUs, as they are now.

Only what the API answers is shown, in words; fields without a value are left out.
"""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

from hpcdl.cli.job_row import (
    annotations_text,
    asked_text,
    connect,
    duration_text,
    eta_text,
    forecast_lines,
    moment_text,
    placement_text,
    step_text,
    tags_text,
)
from hpcdl.cli.job_selection import Selection, check_named, selects
from hpcdl.cli.output import (
    Column,
    Output,
    Row,
    escape,
    outputs_as,
    print_fields,
    print_table,
    say,
    stdout_takes,
    width_of,
)
from hpcdl.cli.sparkline import WIDTH, curve_line, numbers_text
from hpcdl.cli.tables import GPU_COLUMNS, away_note, gpu_rows
from hpcdl.client import Answer, ApiError, Client
from hpcdl.core.model.dependency import Condition
from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.units import count, fold_nodes, memory_text


@click.command()
@selects(acts=False)
@outputs_as("Ids only, one a line.")
def show(ctx: click.Context, chosen: Selection, output: Output) -> None:
    """Show jobs: what was asked, where each stands, its attempts and its log files.

    --json has a job under "job", several in a list, "jobs".
    """
    client = connect(ctx, reading=True)
    answers = _answers(ctx, client, chosen, "show", "")
    if output is not Output.QUIET:
        jobs = [answer["job"] for answer in answers]
        add(client, jobs, "attempts", "attempts")
        add(client, jobs, "series", f"series?points={POINTS}")
    rows: list[Row] = [answer["job"] for answer in answers]
    if not output.print_data(answers[0] if len(rows) == 1 else {"jobs": rows}, [row["id"] for row in rows]):
        from hpcdl.cli.logs import log_files

        for number, row in enumerate(rows):
            if number:
                print()
            logs = row.get("log_files") or [str(file.path) for file in log_files(ctx.find_root().obj, row["id"])]
            _print_job(row, logs)


POINTS = 64
"""Of each curve; a terminal shows no more."""


def add(client: Client, jobs: Sequence[dict[str, Any]], key: str, path: str) -> None:
    """Put into each job under `key` what the daemon answers at a path below it; of a daemon that has no such path,
    nothing."""
    for job in jobs:
        try:
            job[key] = client.get(f"/v1/jobs/{job['id']}/{path}")[key]
        except ApiError:
            return


def _answers(ctx: click.Context, client: Client, chosen: Selection, command: str, question: str) -> list[Answer]:
    """What the daemon answers of each job. Raises ClientError for the first that there is not."""
    check_named(ctx, chosen, f"{command} 3-7 12")
    answers = [client.get(f"/v1/jobs/{job}{question}") for job in chosen.look_up(client)]
    if not answers:
        raise click.ClickException("there is no such job: hpcdl ls --all lists them")
    return answers


def _print_job(row: Row, logs: list[str]) -> None:
    spec: Row = row.get("spec") or {}
    ending = ", ".join(str(row[key]) for key in ("cause", "detail") if row.get(key))
    finished = row.get("finished_at") is not None
    role = "" if row.get("role") in (None, Role.PRIMARY) else f" as {row['role']}"
    gpus = asked_text(row)
    asked = (
        f"{gpus} {'GPU' if gpus == '1' else 'GPUs'}"
        + (f", {spec['cpus']} CPUs" if spec.get("cpus") else "")
        + (f", memory {memory_text(spec['memory_mib'])}" if spec.get("memory_mib") else "")
        + (f", time {duration_text(spec['time_s'])}" if spec.get("time_s") else "")
        + f", grace period {duration_text(spec.get('grace_s'))}, "
        f"signal {spec.get('signal', '?')}"
        + (f", rescale {row['rescale']}" if row.get("rescale", "restart") != "restart" else "")
        + (f", priority {row['priority']}" if row.get("priority") else "")
        + (f", {spec['kind']}" if spec.get("kind", "training") != "training" else "")
        + (f", weight {row['weight']:g}" if row.get("weight", 1.0) != 1.0 else "")
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
            ("output", str(spec.get("output") or "")),
            ("error", str(spec.get("error") or "")),
            ("git", git_text(spec)),
            ("asked", asked),
            ("after", _after(spec)),
            ("annotations", annotations_text(row)),
            ("tags", tags_text(row)),
            *((f"link {name}", str(url)) for name, url in (row.get("links") or {}).items()),
            ("deadline", deadline_text(row)),
            ("profile", str(row.get("profile") or "")),
            ("batch size", str(spec.get("batch_size") or "")),
            ("burst plans", _burst(spec.get("burst") or ())),
            ("placement", placement_text(row.get("placement")) + role),
            ("step", step_text(row)),
            ("saved step", "" if row.get("saved_step") is None else str(row["saved_step"])),
            ("resumed", setback_text(row)),
            ("checkpoints", checkpoints_text(row)),
            ("continues from", str(spec.get("continue_from") or "")),
            ("ETA", eta_text(row)),
            ("submitted", moment_text(row.get("submitted_at"))),
            ("started", moment_text(row.get("started_at"))),
            ("finished", moment_text(row.get("finished_at"))),
            ("waited", "" if row.get("wait_s") is None else duration_text(row["wait_s"])),
            ("submit to end", "" if row.get("jct_s") is None else duration_text(row["jct_s"])),
            ("suspends", str(row.get("suspends") or "")),
            ("preemption test", _drill(row.get("drill"))),
            ("notifications fail", "; ".join(map(str, row.get("notify_failing") or ()))),
            ("failures", str(row.get("failures") or "")),
            ("retries", f"{row.get('retries_used', 0)} of {spec['retries']}" if spec.get("retries") else ""),
            ("ended by" if finished else "last ended by", ending),
            ("exit code", str(row["exit_code"]) if finished and row.get("exit_code") is not None else ""),
        ]
    )
    _print_attempts([each for each in row.get("attempts") or () if each.get("ended_at") is not None])
    incarnations = [each for each in row.get("incarnations") or () if isinstance(each, dict)]
    if incarnations:
        print()
        print_table(
            (
                Column("ATTEMPT", lambda each: str(each.get("number", "")), right=True),
                Column("STATE", lambda each: str(each.get("state", "")), coloured=True),
                Column("NODES", lambda each: fold_nodes(each.get("nodes") or ()) or "-", shrinks=True),
                Column("STARTED", lambda each: moment_text(each.get("started_at")) or "-"),
                Column("TRAINS SINCE", lambda each: moment_text(each.get("ready_at")) or "-"),
                Column("SUSPENDED", _suspended_text),
            ),
            incarnations,
        )
    if curves := curve_lines(row.get("series") or ()):
        print()
        print_fields(curves)
    if logs:
        print()
        print_fields([("log", path) for path in logs])


ATTEMPTS = 20
"""So many of a job's attempts that are over are shown, the last ones; --json has all."""


def _print_attempts(attempts: Sequence[Row]) -> None:
    """A table of the attempts that are over."""
    if not attempts:
        return
    shown = attempts[-ATTEMPTS:]
    days = {_day(each) for each in (*attempts[:1], *shown)}

    def started(attempt: Row) -> str:
        whole = moment_text(attempt["started_at"])
        return whole.rpartition(" ")[2] if len(days) == 1 else whole  # the day is that of `started` above

    print()
    print_table(
        (
            Column("ATTEMPT", lambda each: str(each["number"]), right=True),
            Column("STARTED", started),
            Column("TOOK", lambda each: duration_text(each["ended_at"] - each["started_at"])),
            Column("GPUS", _held),
            Column("STEPS", _steps),
            Column("LOST", _lost),
            Column("ENDED BY", _ended_by, shrinks=True),
        ),
        shown,
    )
    if len(attempts) > ATTEMPTS:
        say(f"{count(len(attempts) - ATTEMPTS, 'earlier attempt')}: --json has all")


def _day(attempt: Row) -> str:
    return moment_text(attempt["started_at"]).partition(" ")[0]


def _held(attempt: Row) -> str:
    return f"{attempt['gpus']} of {fold_nodes(attempt['nodes'])}" if attempt["nodes"] else str(attempt["gpus"])


def _steps(attempt: Row) -> str:
    """From where to where it trained."""
    first, last = attempt["first_step"], attempt["last_step"]
    return "-" if last is None else str(last) if first is None else f"{first}-{last}"


def _lost(attempt: Row) -> str:
    """The steps whose work was lost, or how long it trained or started in vain."""
    steps = attempt["lost_steps"]
    if steps or not attempt["lost_gpu_s"]:
        return count(steps, "step") if steps else "-"
    return duration_text(attempt["lost_s"] or attempt["lost_gpu_s"] / max(1, attempt["gpus"]))


def _ended_by(attempt: Row) -> str:
    return ", ".join(str(attempt[key]) for key in ("cause", "detail") if attempt.get(key))


def _after(spec: Row) -> str:
    """What a job waits for: the jobs that are to be DONE, and other conditions; of a group one suffices."""
    found = [" ".join(map(str, spec.get("after") or ()))]
    for group in spec.get("conditions") or ():
        found.append(" or ".join(str(Condition(each["kind"], each["job"], each["batch"])) for each in group))
    found.append("the earlier jobs of its name to end" if spec.get("singleton") else "")
    return ", ".join(filter(None, found))


def curve_lines(series: Sequence[Row]) -> list[tuple[str, str]]:
    """Each curve by its name: a sparkline on a terminal, and its numbers."""
    width = 0 if stdout_takes()[0] is None else WIDTH
    found = []
    for each in series:
        line = f"{curve_line(each, width):<{width}}  " if width else ""
        found.append((str(each["label"]), line + numbers_text(each)))
    return found


def _burst(plans: Sequence[Row]) -> str:
    """What a burst-parallel job's iteration takes, by GPUs."""
    return ", ".join(f"{count(plan['gpus'], 'GPU')} {plan['time_ms']:.4g} ms" for plan in plans)


def _drill(found: Row | None) -> str:
    """The result of the last preemption test; "" without one."""
    if not found:
        return ""
    verdict = "passed" if found.get("passed") else f"not passed: {found.get('detail')}"
    grace = (
        f", needs a grace period of {found['grace_needed_s']:g} s" if found.get("grace_needed_s") is not None else ""
    )
    return f"{verdict}{grace} ({moment_text(found.get('at'))})"


def _suspended_text(attempt: Row) -> str:
    """Why it is being suspended."""
    from hpcdl.core.model.incarnation import Purpose

    return Purpose(attempt["purpose"]).words if attempt.get("purpose") else "-"


def why_lines(answer: Row) -> list[str]:
    """The job with its state, and a line for each detail of why it is there."""
    reason = f": {answer['reason']}" if answer.get("reason") else ""
    details = [*(answer.get("details") or ()), *forecast_lines(answer)]
    return [f"job {answer['job']}  {answer['state']}{reason}", *(str(each) for each in details if each)]


def _in_words(lines: Sequence[str], width: int | None) -> Iterator[str]:
    """The lines of `why`, what follows the first below it; on a terminal of `width` columns broken between words."""
    for line, indent in zip(lines, ("", *["   "] * len(lines)), strict=False):
        text = indent + escape(line)
        if width is None or width_of(text) <= width:
            yield text
        else:
            yield from textwrap.wrap(text, max(20, width), subsequent_indent="     ", break_on_hyphens=False)


@click.command()
@selects(acts=False)
@outputs_as("Ids only, one a line.")
def why(ctx: click.Context, chosen: Selection, output: Output) -> None:
    """Say in words and numbers why jobs are where they are. --json has several in a list, "jobs"."""
    answers = _answers(ctx, connect(ctx, reading=True), chosen, "why", "/why")
    value = answers[0] if len(answers) == 1 else {"jobs": answers}
    if not output.print_data(value, [answer["job"] for answer in answers]):
        for answer in answers:
            print("\n".join(_in_words(why_lines(answer), stdout_takes()[0])))


@click.command()
@outputs_as("Names only, one a line.")
def nodes(ctx: click.Context, output: Output) -> None:
    """List the nodes, a line for each GPU: its state and the job that holds it."""
    answer = connect(ctx, reading=True).get("/v1/nodes")
    if output.print_data(answer, [node["name"] for node in answer["nodes"]]):
        return
    if answer["nodes"]:
        print_table(GPU_COLUMNS, gpu_rows(answer["nodes"], bare=True))
        note = away_note(answer["nodes"])
        if note:
            say(note)
    else:
        say("no nodes: an agent registers its node when it starts (hpcdl agent)")


def deadline_text(row: Row) -> str:
    """The deadline, and the last estimate of whether it is met; "" without a deadline."""
    found: Row = row.get("deadline") or {}
    if not found:
        return ""
    at = moment_text(found["at"])
    finished = row.get("finished_at")
    if finished is not None:
        return f"{at} ({'passed' if finished > found['at'] or row.get('state') != 'DONE' else 'met'})"
    unheeded = f"; {found['warning']}" if found.get("warning") else ""
    if found.get("meets") is None:
        return at + unheeded
    said = "expected to be met" if found["meets"] else "expected to be missed"
    if found.get("slipped"):
        said = f"slipped: {said}"
    ends = f", done by {moment_text(found['ends_at'])} if nothing else comes" if found.get("ends_at") else ""
    return f"{at} ({said} since {moment_text(found['since'])}: {round(100 * found['probability'])} %{ends}){unheeded}"


def git_text(spec: Row) -> str:
    """The commit of a job, `3f2a9c1d4e5f on main, with changed files`; "" where nothing is known."""
    found: Row | None = spec.get("git")
    if not found:
        return ""
    branch = f" on {found['branch']}" if found.get("branch") else ""
    changed = {True: ", with changed files", None: ", changed files not looked for in time"}.get(found.get("dirty"), "")
    return f"{found['commit'][:12]}{branch}{changed}"


def setback_text(row: Row) -> str:
    """How an attempt went on behind what was saved; "" where none did."""
    found: Row = row.get("setback") or {}
    if not found:
        return ""
    from hpcdl.core.model.world import by_attempt  # late, as below

    by = by_attempt(found["saved_by"])
    return f"attempt {found['attempt']} at {found['step']}; {found['saved']} was saved{by}"


def checkpoints_text(row: Row) -> str:
    """The folder of a job's checkpoints, where that is not the daemon's choice alone."""
    folder = (row.get("spec") or {}).get("checkpoint_dir")
    beginning = int(row.get("beginning") or 0)
    if not folder and not beginning:
        return ""
    from hpcdl.core.model.world import folder_within  # late: most jobs need none of the world

    return folder_within(folder or f"$HPCDL_HOME/checkpoints/{row['id']}", beginning)
