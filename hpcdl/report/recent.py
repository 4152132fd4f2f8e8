"""What the GPUs did in the last hours, from the answers of `GET /v1/overview`, each of which tells what is new."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpcdl.core.model import Role
from hpcdl.core.units import GpuRef
from hpcdl.report.history import History, JobHistory, Phase, Piece, Span
from hpcdl.report.spans import read_history
from hpcdl.report.visible import visible

MOST = 20_000
"""Events that are kept."""
NAME = 80  # letters

Answer = Mapping[str, Any]


@dataclass(slots=True)
class Recent:
    """The events that have to do with the last `back_s` seconds. `after`: what the next answer is to begin after."""

    back_s: float
    after: int = 0
    names: dict[int, str] = field(default_factory=dict)
    _rows: list[Mapping[str, Any]] = field(default_factory=list)

    def take(self, answer: Answer) -> None:
        """The next answer. One that begins elsewhere is of another ledger: then nothing of before counts."""
        if answer["after"] != self.after:
            self._rows, self.names = [], {}
        self._rows += answer["events"]
        self.names |= {int(number): visible(name, NAME) for number, name in answer["names"].items()}
        self.after = answer["last"]
        over = {
            _key(row)
            for row in self._rows
            if row["kind"] == "IncarnationEnded" and row["at"] < answer["at"] - self.back_s
        }
        self._rows = [row for row in self._rows if _key(row) not in over][-MOST:]
        held = {int(gpu[2]) for node in answer["nodes"] for gpu in node["gpus"]}
        known = {row["body"].get("job") for row in self._rows} | held
        self.names = {job: name for job, name in self.names.items() if job in known}

    def history(self, answer: Answer) -> History:
        """From `back_s` before the answer, or where the first that is known begins, until the answer."""
        now = float(answer["at"])
        found = read_history(self._rows, until=now)
        spans = [self._named(span) for span in found.spans if span.end_at > now - self.back_s]
        spans += self._others(answer["nodes"], spans, now)
        first = min((span.start_at for span in spans), default=now)
        begin = min(now - 60.0, max(now - self.back_s, first))
        spans = [clipped(span, begin) for span in spans]
        jobs = {span.job: span.name for span in spans}
        waits = [replace(wait, start_at=max(begin, wait.start_at)) for wait in found.warm if wait.end_at > begin]
        # A node may have come back with fewer GPUs than it had, or not at all.
        gpus = {GpuRef(str(node["name"]), int(gpu[0])) for node in answer["nodes"] for gpu in node["gpus"]}
        gpus |= {GpuRef(span.node, span.gpu) for span in spans}
        named = [replace(wait, name=self.names.get(wait.job, wait.name)) for wait in waits]
        jobs |= {wait.job: wait.name for wait in named}
        return History(
            begin,
            now,
            tuple(sorted(gpus)),
            tuple(JobHistory(job, name, None, begin, None, None, ()) for job, name in sorted(jobs.items())),
            tuple(span for span in spans),
            tuple(named),
        )

    def _named(self, span: Span) -> Span:
        return replace(span, name=self.names.get(span.job, span.name))

    def _others(self, nodes: Iterable[Mapping[str, Any]], spans: Sequence[Span], now: float) -> Iterable[Span]:
        """What is held now since before the events that are known."""
        known = {(span.job, span.incarnation, span.node, span.gpu) for span in spans}
        for node in nodes:
            for index, _, job, incarnation, *_, since in node["gpus"]:
                if job and (job, incarnation, node["name"], index) not in known:
                    name = self.names.get(job, f"job {job}")
                    begin = now - self.back_s if since is None else min(now, since)
                    piece = Piece(Phase.TRAINING, Role.PRIMARY, begin, now)
                    yield Span(job, name, incarnation, node["name"], index, 1, begin, begin, now, (piece,), None)


def clipped(span: Span, begin: float) -> Span:
    """The span without what was before."""
    if span.start_at >= begin:
        return span
    pieces = tuple(replace(each, begin=max(begin, each.begin)) for each in span.pieces if each.end > begin)
    return replace(span, start_at=begin, pieces=pieces or span.pieces[-1:])


def _key(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Of the incarnation; of what concerns none, None and its seq."""
    body = row["body"]
    return (body["job"], body["incarnation"]) if "incarnation" in body else (None, row["seq"])
