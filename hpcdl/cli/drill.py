"""`hpcdl drill`: a preemption test of a running job: it is suspended and killed, and what that costs is measured.

Whatever happens to this command, the job goes on by itself: the daemon keeps an order to kill for a while only. What
a round's events mean is in drill_rounds.py.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from hpcdl.cli import drill_rounds
from hpcdl.cli.drill_rounds import DrillRound
from hpcdl.cli.events import pages
from hpcdl.cli.job_row import FINISHED, connect, duration_text
from hpcdl.cli.job_selection import Selection, check_named, concerned_by, selects
from hpcdl.cli.output import Output, Row, escape, outputs, print_fields, print_table, progress, say, value_column
from hpcdl.cli.params import Seconds
from hpcdl.client import FOLLOW_S, Client, ClientError
from hpcdl.core.model.units import ranges

_WAIT_S = 30.0  # so long the daemon holds back an answer without events
_PARTS = (0.5, 0.1, 0.0)
"""How far into a save the kill comes, in parts of what the last one took; the next one after a save that was over."""
_OWN_SAVE_S = 10.0
"""So long a save of its own is waited for where nobody knows how often it makes one; then it is asked for one."""
_OWN_SAVE_MOST_S = 120.0


_WITHIN_S = 3600.0
"""The longest that the daemon keeps an order to kill."""


class NotProven(ClientError):
    """The preemption test could not be made; the message says why and what to do."""


class _Conduct:
    """One preemption test of one job. Whatever becomes of it, the job goes on by itself: nothing of it is held."""

    def __init__(
        self, client: Client, job: int, every: int | None, timeout_s: float, show: Callable[[str], None]
    ) -> None:
        self._client = client
        self.job = job
        self.every = every
        self._timeout_s = timeout_s
        self._show = show
        self.events: list[dict[str, Any]] = [event for page in pages(client, 0, job, None) for event in page]
        self.done: list[DrillRound] = []

    def suspend(self) -> DrillRound:
        """A preemption as it happens any day: the handshake, and it goes on as soon as it has GPUs."""
        self._show(f"job {self.job}: suspended")
        begun, durable = len(self.events), drill_rounds.last_durable(self.events)
        self._ask("preempt")
        return self._followed(drill_rounds.SUSPEND, begun, durable)

    def kill_between(self) -> DrillRound:
        """SIGKILL at any moment."""
        self._show(f"job {self.job}: killed between two saves")
        self._safe()
        begun, durable, number = self._order_kill(self._timeout_s, saving=False)
        return self._followed(drill_rounds.BETWEEN, begun, durable, number)

    def kill_in_save(self) -> DrillRound:
        """SIGKILL before a save is durable: one of its own if one is due soon, else one that is requested."""
        self._show(f"job {self.job}: killed in the middle of a save")
        for part in _PARTS:
            self._safe()
            patience_s = self._until_own_save_s()
            begun, durable, number = self._order_kill(patience_s + self._timeout_s, saving=True, part=part)
            if not self._until(lambda begun=begun: self._gone(begun), patience_s):  # type: ignore[misc]
                self._ask("preempt")
            found = self._followed(drill_rounds.SAVE, begun, durable, number)
            if found.torn or found.problem:
                break
        return found

    def forget(self) -> None:
        """Withdraw the daemon's order to kill, if there is one."""
        try:
            self._ask("drill", within_s=0)
        except ClientError:
            pass  # it does not run, or nobody is there: then what is in store runs out by itself

    def _ask(self, what: str, **body: Any) -> dict[str, Any]:
        return self._client.request("POST", f"/v1/jobs/{self.job}/{what}", body)

    def _until(self, found: Callable[[], bool], within_s: float) -> bool:
        """Read the job's events until `found`; False where that took too long."""
        end = time.monotonic() + within_s
        after = self.events[-1]["seq"] if self.events else 0
        following = self._client.follow_events(
            after, self.job, wait_s=lambda: max(0.0, min(_WAIT_S, end - time.monotonic()))
        )
        while not found():
            if time.monotonic() >= end:
                return False
            self.events += next(following)
        return True

    def _safe(self) -> None:
        """Wait for a save where a kill before it would cost two intervals at once."""
        self._until(lambda: not drill_rounds.only_in_memory(self.events), self._timeout_s)

    def _order_kill(self, within_s: float, **body: Any) -> tuple[int, int | None, int]:
        """Order a kill: the number of events before it, the last durable step, and the incarnation to be killed."""
        begun, durable = len(self.events), drill_rounds.last_durable(self.events)
        return begun, durable, self._ask("drill", within_s=min(_WITHIN_S, within_s), **body)["kill"]["incarnation"]

    def _gone(self, begun: int) -> bool:
        return any(event["kind"] in ("Exited", "JobEnded") for event in self.events[begun:])

    def _until_own_save_s(self) -> float:
        """How long to wait for a save that nobody requests."""
        known = self.every or drill_rounds.interval(self.events)
        step_s = drill_rounds.step_s(self.events)
        if known is None or step_s == 0.0:
            return _OWN_SAVE_S
        due_s = drill_rounds.MARGIN * known * step_s + 1.0
        return due_s if due_s <= _OWN_SAVE_MOST_S else 0.0

    def _followed(self, what: str, begun: int, durable: int | None, incarnation: int = 0) -> DrillRound:
        def read() -> DrillRound:
            return drill_rounds.read(what, self.events[begun:], durable, incarnation)

        self._until(lambda: read().over, self._timeout_s)
        found = read()
        if not found.over:
            found.problem = found.problem or self._missing(found)
        self.done.append(found)
        return found

    def _missing(self, found: DrillRound) -> str:
        waited, job = duration_text(self._timeout_s), self.job
        if found.exited is None:
            return f"it did not end within {waited}: hpcdl logs {job} shows what it does"
        if found.granted is None:
            return f"it was given no GPUs again within {waited}: hpcdl why {job}"
        if found.ready is None:
            return f"it was started again and did not begin to train within {waited}: hpcdl logs {job}"
        return f"it did no step within {waited} after it began to train: hpcdl logs {job}"


def _verdict(conduct: _Conduct, row: Row, grace_s: float | None) -> dict[str, Any]:
    """The result of the test as JSON."""
    rounds = conduct.done
    kills = [each for each in rounds if each.what != drill_rounds.SUSPEND]
    known = conduct.every or drill_rounds.allowed_loss(conduct.events, kills)
    rows = [each.row for each in rounds]
    lost = drill_rounds.largest((each.row for each in kills), "lost_steps")
    detail = next((each.problem for each in rounds if each.problem), "")
    if not detail and lost and known is None:
        detail = (
            f"{lost} steps were lost, and no checkpoint that it made by itself was seen, so nothing says how many it "
            "may be: have the script save every so many steps (hpcdl.steps(every=N)), or tell --every N"
        )
    elif not detail and lost and known is not None and lost > known:
        detail = f"{lost} steps were lost, more than the {known} between two checkpoints: save more often, or see why"
    needed = drill_rounds.grace_needed_s(rounds, drill_rounds.step_s(conduct.events))
    names = ("suspend_s", "save_s", "exit_s", "free_s", "resume_s", "first_step_s")
    return {
        "job": row["id"],
        "passed": not detail,
        "detail": detail,
        "rounds": rows,
        **{name: drill_rounds.middle(rows, name) for name in names},
        "max": {name: drill_rounds.largest(rows, name) for name in names},
        "lost_steps": lost,
        "interval_steps": known,
        "grace_needed_s": needed,
        "grace_s": row["spec"].get("grace_s"),
        "site_grace_s": grace_s,
    }


@click.command()
@selects(acts=False)
@click.option(
    "--rounds", type=click.IntRange(1, 100), default=1, show_default=True, metavar="N", help="So many times each."
)
@click.option("--between", is_flag=True, help="Kill it between two saves as well.")
@click.option("--every", type=click.IntRange(min=1), metavar="STEPS", help="It checkpoints every so many steps.")
@click.option(
    "--grace", type=Seconds(min=0), metavar="SECONDS", help="What the site gives a preempted job, to compare."
)
@click.option(
    "--timeout", type=Seconds(min=1), default=600, show_default=True, metavar="SECONDS",
    help="Give up where a part of a round takes longer.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask first.")
@outputs
def drill(
    ctx: click.Context,
    chosen: Selection,
    rounds: int,
    between: bool,
    every: int | None,
    grace: float | None,
    timeout: float,
    yes: bool,
    output: Output,
) -> None:
    """Prove that a running job survives preemption, and measure how long that takes; several one after another.

    In each round it is suspended as by a real preemption and resumes; then its processes are killed in the middle of a
    save, and it resumes from the checkpoint before. It passes (exit 0) if it went on each time, and no kill cost more
    steps than are between two checkpoints. No retry is spent. Stopped in the middle, the job goes on by itself.
    """
    check_named(ctx, chosen, "drill 3")
    client = connect(ctx, FOLLOW_S)
    rows = [client.get(f"/v1/jobs/{job}")["job"] for job in chosen.look_up(client, concerned_by("drill"))]
    for row in rows:
        _refuse(row)
    kills = rounds * (2 if between else 1)
    if not yes and output is Output.TABLE and sys.stdin.isatty() and sys.stderr.isatty():
        which = f"job {ranges(row['id'] for row in rows)} is" if len(rows) == 1 else f"{len(rows)} jobs are each"
        question = f"{which} suspended {_times(rounds)} and killed {_times(kills)}; go on?"
        click.confirm(question, default=True, abort=True, err=True)
    found = []
    for row in rows:
        conduct = _Conduct(client, row["id"], every, timeout, progress())
        _go_through(conduct, rounds, between)
        found.append(_verdict(conduct, row, _allocation_grace_s(client, row) if grace is None else grace))
        _record(client, found[-1])
        if output is Output.TABLE:
            _print(found[-1])
        for line in _graces(found[-1]):
            say(line)
        if not found[-1]["passed"]:
            say(f"job {row['id']} did not pass: {found[-1]['detail']}")
    output.print_data({"drill": found[0]} if len(found) == 1 else {"drills": found}, [each["job"] for each in found])
    if not all(each["passed"] for each in found):
        ctx.exit(1)


def _go_through(conduct: _Conduct, rounds: int, between: bool) -> None:
    """All rounds, up to the first problem."""
    try:
        for _ in range(rounds):
            acts = [conduct.suspend, conduct.kill_in_save, *([conduct.kill_between] if between else [])]
            if not all(not act().problem for act in acts):
                return
    except BaseException:
        conduct.forget()
        say(f"the preemption test was broken off: job {conduct.job} goes on by itself")
        raise


def _record(client: Client, found: dict[str, Any]) -> None:
    """Has the daemon keep a job's result."""
    keep = ("passed", "detail", "grace_needed_s", "suspend_s", "save_s", "free_s", "resume_s", "first_step_s")
    kept = {name: found[name] for name in (*keep, "lost_steps", "interval_steps")}
    client.request("POST", f"/v1/jobs/{found['job']}/drilled", kept | {"detail": found["detail"][:500]})


def _refuse(row: Row) -> None:
    """Raises NotProven for a job that cannot be tested now."""
    job, state = row["id"], row["state"]
    if state in FINISHED:
        raise NotProven(f"job {job} is {state}: submit it again, and test it while it runs")
    living = [each for each in row.get("incarnations") or () if not each.get("warm") or each.get("ready_at")]
    if row.get("gpus") and row["spec"].get("signal") == "none":
        raise NotProven(
            f"job {job} was submitted with --signal none: nobody can ask it to checkpoint, so a preemption costs all "
            "of it; submit it with a signal that it answers"
        )
    if state != "RUNNING" or not living:
        raise NotProven(f"job {job} is {state}, not training: test it once it runs (hpcdl why {job})")
    if not any(each.get("attached") for each in living):
        if (signal := row["spec"].get("signal", "hpcdl")) != "hpcdl":
            raise NotProven(
                f"job {job} saves by a handler of its own (--signal {signal}), and nobody sees when that is durable: "
                f"try hpcdl suspend {job}, hpcdl why {job} and hpcdl resume {job}"
            )
        raise NotProven(
            f"job {job} has not called hpcdl.attach() so far, without which nobody sees when a checkpoint is durable: "
            "if it has only just started, test it in a moment"
        )
    if not any(each.get("ready_at") for each in living):
        raise NotProven(f"job {job} is still loading: test it once it trains (hpcdl show {job} names its step)")


def _allocation_grace_s(client: Client, row: Row) -> float | None:
    """What agents in a batch job give their trainers when the batch system wants it back, unless settings say
    otherwise; None outside of any."""
    from hpcdl.agent.departure import EnclosingJob

    held = {node["name"] for node in client.get("/v1/nodes")["nodes"] if node.get("allocation")}
    return EnclosingJob().grace_s if held.intersection(row.get("placement") or ()) else None


def _times(many: int) -> str:
    return "once" if many == 1 else "twice" if many == 2 else f"{many} times"


def _graces(found: dict[str, Any]) -> list[str]:
    """A line for each grace period that is too short."""
    needed, job = found["grace_needed_s"], found["job"]
    lines = []
    if needed is not None and found["grace_s"] is not None and found["grace_s"] < needed:
        lines.append(
            f"job {job} needs a grace period of {needed:g} s and has {found['grace_s']:g} s: "
            f"submit it with --grace {needed:g}"
        )
    if needed is not None and found["site_grace_s"] is not None and found["site_grace_s"] < needed:
        lines.append(
            f"job {job} needs a grace period of {needed:g} s, and the site gives {found['site_grace_s']:g} s: "
            "have it save faster, or more often, for a preemption there costs what was done since the last checkpoint"
        )
    return lines


def _seconds(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


_COLUMNS = (
    value_column("ROUND", "what"),
    value_column("SAVED", "save_s", _seconds, right=True),
    value_column("EXITED", "exit_s", _seconds, right=True),
    value_column("FREE", "free_s", _seconds, right=True),
    value_column("READY", "resume_s", _seconds, right=True),
    value_column("STEP", "first_step_s", _seconds, right=True),
    value_column("DURABLE", "durable_step", right=True),
    value_column("REACHED", "reached_step", right=True),
    value_column("RESUMED AT", "resumed_step", right=True),
    value_column("REPEATED", "lost_steps", right=True),
    value_column("PROBLEM", "problem", shrinks=True),
)


def _print(found: dict[str, Any]) -> None:
    """The table of rounds, in seconds that each count from the end of the one before, and the result."""
    print_table(_COLUMNS, found["rounds"])
    print()
    most = found["max"]

    def both(name: str) -> str:
        return f"{_seconds(found[name])} s, at most {_seconds(most[name])} s" if found[name] is not None else "not seen"

    lost, known, needed = found["lost_steps"], found["interval_steps"], found["grace_needed_s"]
    graces = f"job {_seconds(found['grace_s'])} s" if found["grace_s"] is not None else ""
    if found["site_grace_s"] is not None:
        graces += f", site {_seconds(found['site_grace_s'])} s"
    saves = [row["in_a_save"] for row in found["rounds"] if row["what"] == "kill in a save"]
    print_fields(
        [
            (f"job {found['job']}", "passed" if found["passed"] else escape(f"not passed: {found['detail']}")),
            ("suspend", f"{both('suspend_s')} until its GPUs were seen free"),
            ("save", both("save_s")),
            ("resume", f"{both('resume_s')} until it trained; first step {_seconds(found['first_step_s'])} s later"),
            ("lost by a kill", "-" if lost is None else f"{lost} steps at most, of {known or '?'} between checkpoints"),
            ("grace period needed", "not seen" if needed is None else f"{needed:g} s (there is: {graces})"),
            ("note", "its saves are over too soon to be hit in the middle" if saves and not any(saves) else ""),
        ]
    )
