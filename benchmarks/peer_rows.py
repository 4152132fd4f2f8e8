"""The rows of `peers`: of each its cases, and the lines that are made of what came of them, beside the goals."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.peer_streams import LOADS, Case, Outcome, Stream
from hpcdl.sim.intervals import interval

RIGID_PEERS = ("srt", "las", "max-min", "finish-time-fairness")
SLOWDOWN, MOST = 5.0, 8.0  # of finish-time fairness: what 99.9 % of the jobs keep, and all


@dataclass(frozen=True, slots=True)
class Line:
    """A figure over draws; shares are in percent. `worst`: its worst draw. `met`: None where there is no goal."""

    row: str
    what: str
    draws: int
    mean: float
    half: float
    worst: float
    goal: str
    met: bool | None


Results = Mapping[Case, Outcome]
Row = tuple[list[Case], Callable[[Results], list[Line]]]
"""What it needs, and what makes lines of it."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of the table: each has its cases, and makes lines of their results."""

    traces: Path
    draws: int
    published: Sequence[Mapping[str, str]]
    names: Sequence[str]  # of the policies that there are

    def streams(self, jobs: str) -> list[Stream]:
        """Those of the folder, those of load 1 at one of 1.3 as well, and as many Poisson ones as there are draws."""
        files = [Stream("trace", str(path), jobs) for path in sorted(self.traces.glob("*_load*.csv"))]
        files += [stream._replace(load=LOADS[-1]) for stream in files if stream.name.endswith("_load1.0.csv")]
        drawn = [Stream("poisson", "poisson", jobs, LOADS[seed % 3], seed=seed) for seed in range(self.draws)]
        return [*files, *drawn]

    def pollux(self) -> list[Stream]:
        """Pollux's workloads."""
        return [Stream("pollux", str(path)) for path in sorted(self.traces.glob("pollux*.yaml"))]

    def mixed(self) -> list[Stream]:
        """The streams of which results on three types are published."""
        wanted = {row["trace"] for row in self.published if "0:0" not in row.get("v100:p100:k80", "0:0")}
        files = [path for path in sorted(self.traces.glob("*_load*.csv")) if path.stem in wanted]
        return [Stream("trace", str(path), "rigid", mixed=True) for path in files]

    def sets(self, name: str) -> list[Stream]:
        """One of SideCar's W1 to W4."""
        return [Stream("sidecar", name, seed=seed) for seed in range(self.draws)]

    def peers(self) -> list[str]:
        """Of the rigid peers, those that there are."""
        return [name for name in RIGID_PEERS if name in self.names]

    def printed(self, stream: Stream, key: str = "mean_jct_s", policy: str = "") -> float | None:
        """The least that is published of a stream; p99 of whoever has the least mean."""
        rows = [
            row
            for row in self.published
            if row["trace"] == Path(stream.name).stem
            and (not policy or row["policy"] == policy)
            and ("0:0" not in row.get("v100:p100:k80", "0:0")) == stream.mixed
        ]
        best = min(rows, key=lambda row: float(row["mean_jct_s"]), default=None)
        return None if best is None else float(best[key])


def _cases(streams: Iterable[Stream], policies: Iterable[str], unknown: str = "", wrong: str = "") -> list[Case]:
    return [Case(stream, policy, unknown, wrong) for stream in streams for policy in policies]


def gain(
    row: str, what: str, pairs: Iterable[tuple[float, float | None]], least: float, worst: float = -math.inf
) -> list[Line]:
    """By how many percent the first of each pair is below the second, where there is one; none without a pair.

    `least`: the goal of the mean; `worst`: of each draw.
    """
    gains = [100 * (1 - mine / its) for mine, its in pairs if its]
    if not gains:
        return []
    mean, half = interval(gains)
    goal = f"{least:+g} %" + (f", each {worst:+g} %" if math.isfinite(worst) else "")
    return [Line(row, what, len(gains), mean, half, min(gains), goal, mean >= least and min(gains) >= worst)]


def pollux_told(rows: Rows) -> Row:
    """Pollux's work; its goal is a tenth better than Pollux."""
    return _pollux(rows, "pollux, told", "", 10.0)


def pollux_learnt(rows: Rows) -> Row:
    """The same without lengths, which Pollux does not have either."""
    return _pollux(rows, "pollux, lengths learnt", "steps", 0.0)


def _pollux(rows: Rows, row: str, unknown: str, least: float) -> Row:
    mine = _cases(rows.pollux(), ["adaptive"], unknown)
    own = _cases(rows.pollux(), ["pollux"] if "pollux" in rows.names else [])

    def lines(done: Results) -> list[Line]:
        printed = [(done[case].mean_jct_s, rows.printed(case.stream, policy="pollux")) for case in mine]
        ours = [(done[a].mean_jct_s, done[b].mean_jct_s) for a, b in zip(mine, own, strict=False)]
        found = gain(row, "gain over Pollux as published", printed, least)
        found += gain(row, "gain over `pollux` here", ours, least)
        if not unknown:
            found += gain(row, "`pollux` here below the published", _against(done, own, rows), -5.0, -5.0)
        means = [done[case].mean_jct_s for case in mine]
        return [*found, Line(row, "mean JCT, s", len(means), *interval(means), max(means), "", None)]

    return mine + own, lines


def _against(done: Results, own: Sequence[Case], rows: Rows) -> list[tuple[float, float | None]]:
    return [(done[case].mean_jct_s, rows.printed(case.stream, policy="pollux")) for case in own]


def elastic(rows: Rows) -> Row:
    """Elastic jobs on streams against `elastic`."""
    streams = rows.streams("elastic")

    def lines(done: Results) -> list[Line]:
        pairs, near = [], []
        for stream in streams:
            mine, its = (done[Case(stream, policy)] for policy in ("adaptive", "elastic"))
            pairs.append((mine.mean_jct_s, its.mean_jct_s))
            near.append(mine.bound_s is not None and mine.mean_jct_s <= 1.05 * mine.bound_s)
        (found,) = gain("elastic streams", "gain over `elastic`", pairs, 25.0)
        each = all(close or mine <= 0.85 * its for (mine, its), close in zip(pairs, near, strict=True))
        goal = f"{found.goal}, each +15 % or within 5 % of the bound"
        return [replace(found, goal=goal, met=bool(found.met) and each)]

    return _cases(streams, ["adaptive", "elastic"]), lines


def rigid(rows: Rows) -> Row:
    """Rigid jobs on streams against the best of their peers."""
    streams, peers = rows.streams("rigid"), rows.peers()

    def lines(done: Results) -> list[Line]:
        pairs = [
            (done[Case(stream, "adaptive")].mean_jct_s, min(done[Case(stream, peer)].mean_jct_s for peer in peers))
            for stream in streams
        ]
        return gain("rigid streams", f"gain over the best of {', '.join(peers)}", pairs, 1.5, -1.0)

    return _cases(streams, ["adaptive", *peers]), lines


def fairness(rows: Rows) -> Row:
    """The worst finish-time fairness of `adaptive` over the streams and Pollux's work."""
    cases = _cases([*rows.streams("elastic"), *rows.streams("rigid"), *rows.pollux()], ["adaptive"])

    def lines(done: Results) -> list[Line]:
        row, worst = "fairness", [max(done[case].slowdowns) for case in cases]
        values = [value for case in cases for value in done[case].slowdowns]
        share = 100 * sum(value <= SLOWDOWN for value in values) / len(values)
        mean, half = interval(worst)
        return [
            Line(row, "worst fairness", len(worst), mean, half, max(worst), "none above 8", max(worst) <= MOST),
            Line(row, "% of jobs at most 5", len(cases), share, 0.0, share, "99.9 %", share >= 99.9),
        ]

    return cases, lines


def types(rows: Rows) -> Row:
    """Three types of GPU, rigid jobs, no costs, as Gavel's own simulator had them."""
    streams = rows.mixed()

    def lines(done: Results) -> list[Line]:
        row, own = "three types", {stream: done[Case(stream, "adaptive")] for stream in streams}
        found = gain(row, "gain over Gavel's best", ((own[s].mean_jct_s, rows.printed(s)) for s in streams), 5.0)
        p99 = ((own[s].p99_jct_s, rows.printed(s, "p99_jct_s")) for s in streams)
        return found + gain(row, "p99: gain over Gavel's best", p99, 0.0)

    return _cases(streams, ["adaptive"]), lines


def sets(rows: Rows) -> Row:
    """W1 to W4, finite sets, against `elastic`; the makespan beside it."""
    goals = {"W1": 4.0, "W2": 2.0, "W3": 20.0, "W4": 20.0}
    return _sets(rows, "W1 to W4", [(name, "", "", goal) for name, goal in goals.items()])


def wrong(rows: Rows) -> Row:
    """The same with curves 30 and 50 % wrong for `adaptive` alone."""
    goals = [(name, "", f"curves:{sigma}", goal) for sigma, goal in ((0.3, 0.0), (0.5, -2.0)) for name in _W]
    return _sets(rows, "wrong curves", goals)


def missing(rows: Rows) -> Row:
    """The same where `adaptive` is never told the lengths, or has no profile."""
    return _sets(rows, "missing", [("W3", "steps", "", 10.0), ("W1", "curves,startup,save", "", 0.0)])


_W = ("W1", "W2", "W3")


def _sets(rows: Rows, row: str, wanted: Sequence[tuple[str, str, str, float]]) -> Row:
    cases = [case for name, *told, _ in wanted for case in _cases(rows.sets(name), ["adaptive", "elastic"], *told)]
    cases += [case for name in {name for name, *_ in wanted} for case in _cases(rows.sets(name), ["elastic"])]

    def lines(done: Results) -> list[Line]:
        found = []
        for name, unknown, false, goal in wanted:
            told = " ".join(filter(None, (name, f"without {unknown}" if unknown else "", false)))
            draws = rows.sets(name)
            mine = [done[Case(draw, "adaptive", unknown, false)] for draw in draws]
            its = [done[Case(draw, "elastic")] for draw in draws]
            spans = [(one.makespan_s, other.makespan_s) for one, other in zip(mine, its, strict=True)]
            jcts = [(one.mean_jct_s, other.mean_jct_s) for one, other in zip(mine, its, strict=True)]
            found += gain(row, f"{told}: gain over `elastic`", jcts, goal)
            beside = gain(row, f"{told}: in makespan", spans, goal)
            if unknown or false:
                same = [done[Case(draw, "elastic", unknown, false)].mean_jct_s for draw in draws]
                pairs = zip((one.mean_jct_s for one in mine), same, strict=True)
                beside += gain(row, f"{told}: over `elastic` told the same", pairs, goal)
            found += [replace(line, goal="", met=None) for line in beside]
        return found

    return list(dict.fromkeys(cases)), lines


def suspends(rows: Rows) -> Row:
    """How often jobs are suspended whose lengths are not known, for 120 of them."""
    cases = _cases(rows.streams("elastic"), ["adaptive"], "steps")

    def lines(done: Results) -> list[Line]:
        each = [120 * done[case].suspends / len(done[case].slowdowns) for case in cases]
        mean, half = interval(each)
        return [Line("suspends", "of 120 jobs", len(each), mean, half, max(each), "each under 400", max(each) < 400)]

    return cases, lines


ROWS: dict[str, Callable[[Rows], Row]] = {
    "pollux": pollux_told,
    "pollux-learnt": pollux_learnt,
    "elastic": elastic,
    "rigid": rigid,
    "fairness": fairness,
    "types": types,
    "sets": sets,
    "wrong": wrong,
    "missing": missing,
    "suspends": suspends,
}
