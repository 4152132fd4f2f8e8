"""What `hpcdl ls` lists, from the options to the lines: the jobs, and what all lists have alike."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcdl.cli import completing
from hpcdl.cli.folding import folded
from hpcdl.cli.formats import JOBS, Kind, Shown
from hpcdl.cli.output import Output, Row, table_for_stdout
from hpcdl.cli.rows import FINISHED
from hpcdl.client import Answer, Client, path_with

_FOLDED = ("id", "name", "array", "array_index", "state", "user", "gpus_min", "gpus_max", "nodes", "nodes_max")
STATES = ("QUEUED", "STARTING", "RUNNING", "RESCALING", "SUSPENDING", "SUSPENDED", *FINISHED)


def _kind_of(ctx: click.Context) -> Kind:
    """What is being listed, as far as it was typed."""
    what = ctx.params.get("what") or next((each for each in ctx.args if each in ("nodes", "gpus")), "jobs")
    if what == "jobs":
        return JOBS
    from hpcdl.cli.machines import GPUS, NODES

    return NODES if what == "nodes" else GPUS


def columns_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of columns, for the shell."""
    return completing.words(_kind_of(ctx).columns, listed=param.name == "columns")(ctx, param, incomplete)


def formats_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Names of formats, for the shell."""
    return completing.words(_kind_of(ctx).formats)(ctx, param, incomplete)


class List:
    """Something to list: asked of the daemon, and put into lines."""

    def __init__(self, ctx: click.Context, kind: Kind, columns: str | None, form: str, sort: str | None) -> None:
        """Raises UsageError for what there is not."""
        self.kind = kind
        self.shown: list[Shown] = kind.chosen(columns, form)
        self.by = sort
        kind.sort((), sort)
        self.own = columns is not None or form != "default"

    def ask(self, client: Client, output: Output) -> Answer:
        """The daemon's answer, its rows sorted."""
        raise NotImplementedError

    def ids(self, value: Answer) -> list[object]:
        """What `--quiet` prints."""
        raise NotImplementedError

    def rows(self, value: Answer) -> Sequence[Row]:
        """The rows of the table."""
        raise NotImplementedError

    def nothing(self) -> str:
        """What is said where there are no rows."""
        raise NotImplementedError

    def note(self, value: Answer) -> str:
        """What is said below the table."""
        return ""

    def lines(self, value: Answer) -> tuple[list[str], str]:
        """The table, and what is said to it."""
        rows = self.rows(value)
        if not rows:
            return [], self.nothing()
        return table_for_stdout([each.column for each in self.shown], rows), self.note(value)

    def watched(self, client: Client, output: Output) -> tuple[Answer, list[object], Callable[[], list[str]]]:
        """What `Watch.show` takes."""
        value = self.ask(client, output)
        return value, self.ids(value), lambda: self.lines(value)[0] or [self.nothing()]


class Jobs(List):
    """The jobs."""

    def __init__(
        self,
        ctx: click.Context,
        *,
        every: bool,
        columns: str | None,
        form: str,
        sort: str | None,
        states: Sequence[str],
        user: str | None,
        name: str | None,
        no_fold: bool,
    ) -> None:
        super().__init__(ctx, JOBS, columns, form, sort)
        self.every = every
        given = [part.strip().upper() for each in states for part in each.split(",") if part.strip()]
        wrong = next((each for each in given if each not in STATES), None)
        if wrong is not None or (states and not given):
            raise click.UsageError(f"jobs have no state {wrong or states[0]!r}: {', '.join(STATES)}", ctx)
        self.filters = {"state": ",".join(given) or None, "user": user, "name": name}
        self.folds = not (no_fold or self.own)

    def ask(self, client: Client, output: Output) -> Answer:
        """`GET /v1/jobs`; for a table only with what it shows."""
        fields = None
        if output is not Output.JSON:
            more = _FOLDED if self.folds else ("id",)
            fields = "id" if output is Output.QUIET else None
            if output is Output.TABLE or self.by is not None:
                fields = self.kind.needs(self.shown if output is Output.TABLE else (), self.by, more)
        answer = client.get(path_with("/v1/jobs", all=1 if self.every else None, **self.filters, fields=fields))
        return answer if self.by is None else {**answer, "jobs": self.kind.sort(answer["jobs"], self.by)}

    def ids(self, value: Answer) -> list[object]:
        return [row["id"] for row in value["jobs"]]

    def rows(self, value: Answer) -> Sequence[Row]:
        rows: list[Row] = value["jobs"]
        return folded(rows) if self.folds and any(row.get("array") for row in rows) else rows

    def nothing(self) -> str:
        if any(self.filters.values()):
            return "no such jobs" + ("" if self.every else " (finished ones: hpcdl ls --all)")
        return "no jobs: hpcdl submit -- COMMAND" if self.every else "no jobs (finished ones: hpcdl ls --all)"
