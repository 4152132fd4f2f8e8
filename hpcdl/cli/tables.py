"""What `hpcdl ls` lists, from the options to the lines: the jobs, and what all lists have alike."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import click

from hpcdl.cli import completing
from hpcdl.cli.folding import folded
from hpcdl.cli.formats import JOBS, Kind, Shown
from hpcdl.cli.output import Output, Row, lines_of, stdout_takes, table_for_stdout
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


class List(ABC):
    """Something to list: asked of the daemon, and put into lines."""

    def __init__(self, ctx: click.Context, kind: Kind, columns: str | None, form: str, sort: str | None) -> None:
        """Raises UsageError for what there is not."""
        self.kind = kind
        self.shown: list[Shown] = kind.chosen(columns, form)
        self.by = sort
        kind.sort((), sort)
        self.own = columns is not None or form != "default"

    @abstractmethod
    def ask(self, client: Client, output: Output) -> Answer:
        """The daemon's answer, its rows sorted."""

    @abstractmethod
    def ids(self, value: Answer) -> list[object]:
        """What `--quiet` prints."""

    @abstractmethod
    def rows(self, value: Answer) -> Sequence[Row]:
        """The rows of the table."""

    @abstractmethod
    def nothing(self) -> str:
        """What is said where there are no rows."""

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
        """`GET /v1/jobs`; for a table only with what it shows, by column, which is half as long."""
        query = {"all": 1 if self.every else None, **self.filters}
        if output is Output.TABLE:
            fields = self.kind.needs(self.shown, self.by, _FOLDED if self.folds else ("id",))
            answer = client.get(path_with("/v1/jobs", **query, fields=fields, by="column"))
            if self.by is None and not (self.folds and "array" in answer["columns"]):
                return answer
            answer["jobs"] = _rows(answer.pop("columns"), answer["count"])
        else:
            few = self.kind.needs((), self.by, ("id",)) if output is Output.QUIET else None
            answer = client.get(path_with("/v1/jobs", **query, fields=few))
        return answer if self.by is None else {**answer, "jobs": self.kind.sort(answer["jobs"], self.by)}

    def ids(self, value: Answer) -> list[object]:
        if "columns" in value:
            return list(value["columns"].get("id", ()))
        return [row["id"] for row in value["jobs"]]

    def rows(self, value: Answer) -> Sequence[Row]:
        rows: list[Row] = value["jobs"]
        return folded(rows) if self.folds else rows

    def lines(self, value: Answer) -> tuple[list[str], str]:
        if "columns" not in value:
            return super().lines(value)
        if not value["count"]:
            return [], self.nothing()
        texts = [each.texts(value["columns"], value["count"]) for each in self.shown]
        width, colour = stdout_takes()
        return lines_of([each.column for each in self.shown], texts, width=width, colour=colour), ""

    def nothing(self) -> str:
        if any(self.filters.values()):
            return "no such jobs" + ("" if self.every else " (finished ones: hpcdl ls --all)")
        return "no jobs: hpcdl submit -- COMMAND" if self.every else "no jobs (finished ones: hpcdl ls --all)"


def _rows(columns: dict[str, list[Any]], number: int) -> list[Row]:
    """Rows from columns, without what is null."""
    rows: list[dict[str, Any]] = [{} for _ in range(number)]
    for key, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[key] = value
    return list(rows)
