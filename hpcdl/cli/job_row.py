"""Texts of a job's row, as every command prints them: sizes, placements, steps, times; and a client of the daemon.

Imported by nearly every command, so it imports little.
"""

import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import click

from hpcdl.cli.output import Row, say
from hpcdl.client import PATIENCE_S, Client
from hpcdl.core.model.member_name import base_name
from hpcdl.core.model.units import fold_nodes, meant, seconds_text, short_band_text

FINISHED = ("DONE", "FAILED", "CANCELLED")
"""States of a job that will not run again."""

STATES = ("QUEUED", "STARTING", "RUNNING", "RESCALING", "SUSPENDING", "SUSPENDED", *FINISHED)


def states_in(ctx: click.Context, texts: Iterable[str]) -> list[str]:
    """The states of `--state queued,running`. Raises UsageError with the nearest, else with those there are."""
    parts = [part.strip().upper() for text in texts for part in text.split(",")]
    given = [part for part in parts if part]
    wrong = next((part for part in given if part not in STATES), None if given else next(iter(parts), None))
    if wrong is not None:
        hint = meant(wrong, STATES, ", ".join(STATES), most=2, cutoff=0.7)
        raise click.UsageError(f"jobs have no state {wrong!r}: {hint}", ctx)
    return given


def connect(ctx: click.Context, patience_s: float = PATIENCE_S, *, reading: bool = False) -> Client:
    """A client of the daemon that `--home` names, closed when the command ends.

    `reading`: where no daemon answers, GETs are answered from its ledger, if that can be said to be at rest.
    """
    if reading:
        from hpcdl.cli.offline import LedgerClient, tell_as_of

        home, tell = ctx.find_root().obj, partial(tell_as_of, ctx)
        return ctx.with_resource(LedgerClient(home, patience_s=patience_s, note=say, tell=tell))
    return ctx.with_resource(Client(ctx.find_root().obj, patience_s=patience_s, note=say))


def asked_text(row: Row) -> str:
    """The GPUs of a request: `1`, `1:3`, `2:`; `2x4`: 4 on each of 2 nodes, `1:8x4`: on each of 1 to 8."""
    low, high, nodes = row.get("gpus_min", 1), row.get("gpus_max"), row.get("nodes", 1)
    gpus = f"{low}:" if high is None else str(low) if low == high else f"{low}:{high}"
    most = row.get("nodes_max") or nodes
    if most != nodes:
        return f"{nodes}:{most}x{gpus}"
    return gpus if nodes == 1 else f"{nodes}x{gpus}"


def submitted_name(row: Row) -> str:
    """The name that the job, or the array that it is in, was submitted with."""
    name = str(row.get("name", ""))
    return base_name(name, row["array_index"], (row.get("sweep") or {}).items()) if row.get("array") else name


def nodes_text(row: Row) -> str:
    """The nodes of its placement, folded: `n[1-4]`; `-` where it has none."""
    return fold_nodes(row.get("placement") or ()) or "-"


def placement_text(placement: Any) -> str:
    """A placement as `n1:0,1 n2:0,1`; "" where there is none."""
    if not isinstance(placement, dict):
        return ""
    return " ".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in placement.items())


def annotations_text(row: Row) -> str:
    """A job's annotations: `dataset=imagenet lr=0.1`."""
    return " ".join(f"{key}={value}" for key, value in (row.get("annotations") or {}).items())


def tags_text(row: Row) -> str:
    """A job's tags: `baseline resnet`."""
    return " ".join(map(str, row.get("tags") or ()))


def links_text(row: Row) -> str:
    """A job's links: `wandb=https://wandb.ai/me/project`."""
    return " ".join(f"{name}={url}" for name, url in (row.get("links") or {}).items())


def step_text(row: Row) -> str:
    """The last step of a job: `120/900`, `120`, or `-` where none was reported."""
    step, total = row.get("step"), row.get("total")
    if step is None:
        return "-"
    return str(step) if total is None else f"{step}/{total}"


def duration_text(seconds: float | None) -> str:
    """Seconds for people: `3 min 20 s`, or `-`."""
    return "-" if seconds is None else seconds_text(seconds)


def moment_text(at: float | None) -> str:
    """Seconds since the epoch as local time, `2024-05-01 13:02:11`; empty where there is none."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def end_text(row: Row) -> str:
    """A job's end in a line: `job 7 FAILED (exit code 3): train.py: user error`."""
    code = row.get("exit_code")
    shown = f" (exit code {code})" if row.get("state") == "FAILED" and code is not None else ""
    tail = f": {row['detail']}" if row.get("state") == "FAILED" and row.get("detail") else ""
    return f"job {row['id']} {row['state']}{shown}: {row.get('name', '')}{tail}"


def eta_text(row: Row) -> str:
    """What is left of a job that holds GPUs, with its band where it has one; "" where that is not known."""
    left, low, high = (row.get(key) for key in ("eta_s", "eta_low_s", "eta_high_s"))
    if left is None:
        return ""
    band = "" if low is None or high is None else f", perhaps {duration_text(low)} to {duration_text(high)}"
    return f"{duration_text(left)}{band}"


def short_eta_text(row: Row) -> str:
    """The same in a cell: `~3m30s (1-6m)`."""
    left = row.get("eta_s")
    return "" if left is None else short_band_text(left, row.get("eta_low_s"), row.get("eta_high_s"))


def forecast_lines(row: Row) -> list[str]:
    """How likely a job's deadline is met, and the latency of an inference, in short lines; none where it has none."""
    found, latency = row.get("forecast") or {}, row.get("latency") or {}
    return [*(found.get("lines") or filter(None, [found.get("text")])), *filter(None, [latency.get("text")])]
