"""The lists of `hpcdl ls`: from its options to rows and lines, of jobs, nodes and GPUs.

Columns of jobs are in columns.py, how a table is aligned is in output.py. `top` and `ls --all-users` take their rows
from here, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli import completion
from hpcdl.cli.columns import JOBS, ColumnSpec, Kind, folded, number, plain, spec, text_of
from hpcdl.cli.job_row import moment_text, states_in
from hpcdl.cli.output import AS_OF, Column, Output, Row, cells_of, say, stdout_takes, table_lines
from hpcdl.client import Answer, Client, path_with
from hpcdl.core.model.units import fold_nodes

if TYPE_CHECKING:
    from hpcdl.core.model.gpu_use import GpuUse

FOLDED = ("id", "name", "array", "array_index", "sweep", "state", "user", "gpus_min", "gpus_max", "nodes", "nodes_max")


def _kind_of(ctx: click.Context) -> Kind:
    """The kind of list that is being typed, for completion."""
    what = ctx.params.get("what") or next((each for each in ctx.args if each in ("nodes", "gpus")), "jobs")
    if what == "jobs":
        return JOBS

    return NODES if what == "nodes" else GPUS


def columns_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Offers names of columns."""
    return completion.words(_kind_of(ctx).columns, listed=param.name == "columns")(ctx, param, incomplete)


def formats_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Offers names of formats."""
    return completion.words(_kind_of(ctx).formats)(ctx, param, incomplete)


OF_ONE_MEMBER = ("metric", "elapsed", "progress", "step", "done", "eta")
"""Who sorts by these wants to see each member of an array: a folded row has none of them."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a list came to: its JSON value, its ids, the lines of its table, and what is said below that."""

    value: Answer
    ids: list[object]
    lines: list[str]
    note: str = ""


class List(ABC):
    """A list of `hpcdl ls`: its request, its rows, and its lines."""

    nothing: str
    """What is said where there are no rows."""

    def __init__(self, kind: Kind, columns: str | None, form: str, sort: str | None) -> None:
        """Raises UsageError for columns, formats and orders that there are not."""
        self.kind = kind
        self.shown: list[ColumnSpec] = kind.chosen(columns, form)
        self.by = sort
        kind.sort((), sort)
        self.own = columns is not None or form != "default"

    @abstractmethod
    def look(self, client: Client, output: Output) -> Listing:
        """The daemon's answer, sorted; lines only for a table. Raises ClientError."""

    def table(self, rows: Sequence[Row]) -> list[str]:
        """The lines of a table of these rows; none without rows."""
        columns = [each.column for each in self.shown]
        return table_lines(columns, cells_of(columns, rows)) if rows else []


class Jobs(List):
    """The list of jobs."""

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
        tag: str | None,
        no_fold: bool,
        group: str | None,
    ) -> None:
        super().__init__(JOBS, columns, form, sort or ("metric" if group else None))
        if group and self.own:
            raise click.UsageError("--group has columns of its own", ctx)
        self.every = every or bool(group)
        self.grouped = bool(group)
        given = states_in(ctx, states)
        self.filters = {"state": ",".join(given) or None, "user": user, "name": name, "tag": tag}
        self.by_metric = (self.grouped and not sort) or (sort or "").removeprefix("-").lower() == "metric"
        self.folds = not (no_fold or self.own or (sort or "").removeprefix("-").lower() in OF_ONE_MEMBER)

        if any(self.filters.values()):
            self.nothing = "no such jobs" + ("" if every else " (finished ones: hpcdl ls --all)")
        else:
            self.nothing = "no jobs: hpcdl submit -- COMMAND" if every else "no jobs (finished ones: hpcdl ls --all)"

    def look(self, client: Client, output: Output) -> Listing:
        """`GET /v1/jobs`; for a table only with what it shows, by column, which is half as long."""
        query = {"all": 1 if self.every else None, **self.filters}
        if self.grouped:
            return self._sweeps(client, query, output)
        if output is not Output.TABLE:
            few = self.kind.needs((), self.by, ("id",)) if output is Output.QUIET else None
            answer = client.get(path_with("/v1/jobs", **query, fields=few))
            rows = self.kind.sort(answer["jobs"], self.by)
            return Listing({**answer, "jobs": rows}, [row["id"] for row in rows], [])
        fields = self.kind.needs(self.shown, self.by, FOLDED if self.folds else ("id",))
        answer = client.get(path_with("/v1/jobs", **query, fields=fields, by="column"))
        columns, number = answer["columns"], answer["count"]
        if not number:
            return Listing(answer, [], [])
        width, _ = stdout_takes()
        if width is None and self.by is None and not (self.folds and "array" in columns):
            texts = [each.texts(columns, number) for each in self.shown]
            return Listing(answer, [], table_lines([each.column for each in self.shown], texts))
        rows = self.kind.sort(_rows(columns, number), self.by)
        self._say_of_metrics(rows)
        shown = folded(rows) if self.folds else rows
        if width is None or self.own:
            return Listing(answer, [], self.table(shown))
        from hpcdl.cli.job_table import noted_lines, summary

        *texts, notes = cells_of(titles := [each.column for each in self.shown], shown)
        return Listing(answer, [], [*noted_lines(titles[:-1], texts, notes, width), summary(rows)])

    def _say_of_metrics(self, rows: Sequence[Row]) -> None:
        if self.by_metric and all(row.get("metric") is None for row in rows):
            say(
                "no job reported a metric, which hpcdl.progress(step, metric=loss) does: the order is that of their ids"
            )

    def _sweeps(self, client: Client, query: dict[str, Any], output: Output) -> Listing:
        """A line for each array, with its best member by the order."""
        from hpcdl.cli.job_table import SWEEP_COLUMNS, sweeps_of

        fields = self.kind.needs((), self.by, FOLDED) + ",metric"
        answer = client.get(path_with("/v1/jobs", **query, fields=None if output is Output.JSON else fields))
        sweeps = sweeps_of(self.kind.sort(answer["jobs"], self.by))
        if output is Output.TABLE:
            self._say_of_metrics(answer["jobs"])
        value = [{key: each[key] for key in ("id", "name", "jobs", "states", "best")} for each in sweeps]
        best = [each["best_id"] for each in sweeps if each["best_id"] is not None]
        columns = [each.column for each in SWEEP_COLUMNS]
        lines = table_lines(columns, cells_of(columns, sweeps)) if sweeps else []
        return Listing({"sweeps": value}, best, lines)


def _rows(columns: dict[str, list[Any]], number: int) -> list[Row]:
    """Rows from columns, without what is null."""
    rows: list[dict[str, Any]] = [{} for _ in range(number)]
    for key, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[key] = value
    return list(rows)


# --- nodes and GPUs ---------------------------------------------------------------------------------------------------

Rows = list[dict[str, Any]]


HOLDERS = ("holder", "background")
"""Keys of a GPU that name attempts: which has it, and which runs beside that one."""


def node_rows(nodes: Sequence[Row]) -> Rows:
    """Rows of nodes from the answer of `GET /v1/nodes`, with what their GPUs come to."""
    rows = []
    for node in nodes:
        gpus = node.get("gpus") or []
        use = use_of([node])
        rows.append(
            {
                **node,
                "agent": agent_text(node),
                "kinds": sorted({str(gpu.get("name") or "") for gpu in gpus} - {""}) or None,
                "counts": (use.held, sum(map(_healthy, gpus)), len(gpus)),
                "jobs": sorted({gpu[key]["job"] for gpu in gpus for key in HOLDERS if gpu.get(key)}) or None,
                "util": use.load,
                "used": _sum(gpu.get("used_mib") for gpu in gpus),
                "memory": _sum(gpu.get("memory_mib") or None for gpu in gpus),
                "power": _sum(gpu.get("power_w") for gpu in gpus),
                "detail": _node_detail(node),
            }
        )
    return rows


def _without_agent(row: Row) -> Row:
    """A node of an allocation on which no agent could be started."""
    none = dict.fromkeys(("cpus", "until", "kinds", "counts", "jobs", "util", "used", "memory", "power"))
    return {**none, **row, "agent": "none", "detail": row["reason"]}


def gpu_rows(nodes: Sequence[Row], *, bare: bool = False) -> Rows:
    """Rows of GPUs from the answer of `GET /v1/nodes`: with an `id` like `n1:0`, their node, and the node's agent.

    `bare`: a row, too, for each node without any.
    """
    rows = []
    for node in nodes:
        for gpu in node.get("gpus") or ([{}] if bare else []):
            name = node.get("name")
            known = {"id": f"{name}:{gpu.get('index')}", "node": name, "agent": agent_text(node)}
            of_node = {"leaving": node.get("leaving"), "until": node.get("until"), "node_reason": node.get("reason")}
            rows.append({**known, **gpu, **of_node})
    return rows


def use_of(nodes: Sequence[Row]) -> "GpuUse":
    """What the GPUs of these nodes come to now, as `ls nodes`, `ls --all-users` and `top` show it."""
    from hpcdl.core.model.gpu_use import GpuNow, gpu_use  # late: lists of jobs need none of it

    return gpu_use(
        GpuNow(
            held=bool(gpu.get("holder")),
            healthy=_healthy(gpu),
            there=gpu["agent"] == "connected" and not gpu.get("leaving"),
            load=gpu.get("util"),
        )
        for gpu in gpu_rows(nodes)
    )


def _healthy(gpu: Row) -> bool:
    """Whether it may be granted: neither broken nor excluded."""
    return gpu.get("state", "ok") == "ok" and not gpu.get("avoided_until")


def folded_nodes(rows: Sequence[Row], shown: Sequence[ColumnSpec]) -> list[Row]:
    """The rows of nodes with one line for all that the table says the same of: `n[1-4]`."""
    rest = [each for each in shown if each.column.title != "NODE"]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(each.column.cell(row) for each in rest), []).append(row)
    return [{**rows[0], "name": fold_nodes(str(row["name"]) for row in rows)} for rows in groups.values()]


def agent_text(node: Row) -> str:
    """Whether the node's agent is connected."""
    return "lost" if node.get("lost") else "connected" if node.get("connected") else "away"


def away_note(nodes: Iterable[Row]) -> str:
    """What to do about nodes whose agents are away; "" where none is, and without a daemon, since then all are."""
    if AS_OF in click.get_current_context().meta:
        return ""
    away = [str(node["name"]) for node in nodes if agent_text(node) == "away" and not node.get("leaving")]
    if not away:
        return ""
    return (
        f"no agent is connected on {fold_nodes(away)}; trainers there go on for a while: hpcdl agent starts "
        "one (hpcdl daemon start does where the daemon runs)"
    )


def _node_detail(node: Row) -> str:
    """Whether it is drained, or when it goes, and why."""
    goes = "drained" if node.get("leaving") else f"goes {moment_text(node['until'])}" if node.get("until") else ""
    return ": ".join(str(each) for each in (goes, node.get("reason")) if each)


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _holder(gpu: Row) -> tuple[int, int] | None:
    holder = gpu.get("holder")
    return (holder["job"], holder["incarnation"]) if holder else None


def holder_text(gpu: Row) -> str:
    """The attempt that holds a GPU, `7.2`: the job and its number; with a background beside it `7.2 + 9.1`."""
    found = [f"{gpu[key]['job']}.{gpu[key]['incarnation']}" for key in HOLDERS if gpu.get(key)]
    return " + ".join(found) or "-"


def memory_text(used: float | None, whole: float | None) -> str:
    """Memory in use and in all, `3.2/16 GiB`; a part that is not known is `-`."""
    if not whole and used is None:
        return "-"
    return f"{'-' if used is None else f'{used / 1024:.1f}'}/{f'{whole / 1024:.0f}' if whole else '-'} GiB"


def _gpu_detail(gpu: Row) -> str:
    """What is the matter with a GPU, since when and why it is excluded, and what is the matter with its node."""
    parts = [gpu.get("detail")]
    if gpu.get("avoided_until"):
        why = f": {gpu['avoid_reason']}" if gpu.get("avoid_reason") else ""
        parts.append(f"excluded until {moment_text(gpu['avoided_until'])}{why}")
    health = gpu.get("health")
    if health and health != "ok":
        parts.append(health if isinstance(health, str) else _health_text(health))
    parts.append(_node_detail({**gpu, "reason": gpu.get("node_reason")}))
    return "; ".join(str(part) for part in parts if part)


def _gpu_state(gpu: Row) -> str:
    """The state; of a GPU that is ok, whether its agent is away."""
    state = gpu.get("state")
    return text_of(gpu["agent"] if state == "ok" and gpu.get("agent") in ("away", "lost") else state)


def _health_text(health: Any) -> str:
    if not isinstance(health, dict):
        return str(health)
    return ", ".join(f"{key} {text_of(value)}" for key, value in health.items() if value)


NODES = Kind(
    "nodes",
    {
        "node": plain("NODE", "name"),
        "agent": plain("AGENT", "agent"),
        "gpus": number("GPUS", "counts", "{0[0]}/{0[1]}/{0[2]}".format),
        "kind": plain("KIND", "kinds", ", ".join, shrinks=True),
        "jobs": plain("JOBS", "jobs", lambda jobs: ",".join(map(str, jobs)), shrinks=True),
        "util": number("UTIL", "util", "{:.0f} %".format),
        "memory": spec("MEMORY", lambda row: memory_text(row["used"], row["memory"]), "used", right=True),
        "power": number("POWER", "power", "{:.0f} W".format),
        "cpus": number("CPUS", "cpus"),
        "allocation": plain("ALLOCATION", "allocation"),
        "until": plain("UNTIL", "until", moment_text),
        "detail": spec("DETAIL", lambda row: row["detail"], order=lambda row: row["detail"] or None, shrinks=True),
    },
    {
        "default": ("node", "agent", "gpus", "jobs", "util", "memory", "detail"),
        "long": (
            *("node", "agent", "gpus", "kind", "jobs", "util", "memory", "power", "cpus"),
            *("allocation", "until", "detail"),
        ),
    },
)
"""What `hpcdl ls nodes` shows; GPUS are those that jobs hold, that may be given, and all."""

GPUS = Kind(
    "gpus",
    {
        "gpu": spec("GPU", lambda row: str(row["id"]), order=lambda row: (row["node"], row.get("index"))),
        "node": plain("NODE", "node"),
        "index": number("INDEX", "index"),
        "kind": plain("KIND", "name", shrinks=True),
        "uuid": plain("UUID", "uuid", shrinks=True),
        "agent": plain("AGENT", "agent"),
        "state": spec("STATE", _gpu_state, "state"),
        "job": spec("JOB", holder_text, order=_holder, right=True),
        "role": plain("ROLE", "role"),
        "util": number("UTIL", "util", "{:.0f} %".format),
        "memory": spec(
            "MEMORY", lambda row: memory_text(row.get("used_mib"), row.get("memory_mib")), "used_mib", right=True
        ),
        "power": number("POWER", "power_w", "{:.0f} W".format),
        "avoided": plain("EXCLUDED UNTIL", "avoided_until", moment_text),
        "why": plain("WHY", "avoid_reason", shrinks=True),
        "health": spec(
            "HEALTH",
            lambda row: _health_text(row.get("health") or "-"),
            order=lambda row: str(row.get("health") or "") or None,
            shrinks=True,
        ),
        "detail": spec("DETAIL", _gpu_detail, order=lambda row: _gpu_detail(row) or None, shrinks=True),
    },
    {
        "default": ("gpu", "kind", "state", "job", "role", "util", "memory", "power", "detail"),
        "long": (
            *("gpu", "kind", "uuid", "agent", "state", "job", "role", "util", "memory", "power"),
            *("avoided", "why", "health", "detail"),
        ),
    },
)
"""What `hpcdl ls gpus` shows."""

GPU_COLUMNS = (
    *(GPUS.columns[name].column for name in ("node", "agent")),
    replace(GPUS.columns["index"].column, title="GPU"),
    plain("STATE", "state").column,
    GPUS.columns["job"].column,
    Column("NAME", lambda row: str(row.get("name", "")), shrinks=True),
    GPUS.columns["detail"].column,
)
"""What `hpcdl nodes` shows."""


class Machines(List):
    """The list of nodes, or of the GPUs of all nodes."""

    def __init__(
        self,
        ctx: click.Context,
        what: str,
        *,
        columns: str | None,
        form: str,
        sort: str | None,
        no_fold: bool,
        **jobs: Any,
    ) -> None:
        """`jobs`: options that are for jobs only."""
        super().__init__(NODES if what == "nodes" else GPUS, columns, form, sort)
        given = {
            "every": "--all", "states": "--state", "user": "--user", "name": "--name", "tag": "--tag",
            "group": "--group",
        }  # fmt: skip
        wrong = next((option for key, option in given.items() if jobs.get(key)), None)
        if wrong is not None:
            raise click.UsageError(f"{wrong} is for jobs", ctx)
        self.what = what
        self.folds = what == "nodes" and not (no_fold or self.own or sort)

        self.nothing = (
            "no nodes: an agent registers its node when it starts (hpcdl agent)"
            if what == "nodes"
            else "no GPUs: hpcdl ls nodes lists the nodes"
        )

    def look(self, client: Client, output: Output) -> Listing:
        """`GET /v1/nodes`; of GPUs a row each."""
        answer = client.get("/v1/nodes")
        if self.what == "gpus":
            rows = self.kind.sort(gpu_rows(answer["nodes"]), self.by)
            value = {"schema": answer["schema"], "gpus": rows}
            return Listing(value, [row["id"] for row in rows], self.table(rows) if output is Output.TABLE else [])
        without = [_without_agent(each) for each in answer.get("without_agent", ())]
        rows = self.kind.sort(node_rows(answer["nodes"]), self.by)
        named = {node["name"]: node for node in answer["nodes"]}
        names = [row["name"] for row in rows]
        rows = [*rows, *without]
        lines = self.table(folded_nodes(rows, self.shown) if self.folds else rows)
        return Listing({**answer, "nodes": [named[name] for name in names]}, names, lines, away_note(answer["nodes"]))
