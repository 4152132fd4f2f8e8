"""The exact choice of widths where branches run side by side on disjoint GPUs, and the schedule of such a plan.

The graph is reduced as a series-parallel one: a run is a sequence of layers; between two of them lies one edge, or
branches (runs again) from the layer that forks to the one that joins. Side by side, branches need the sum of their
GPUs, a run the most that any of its layers needs, and the join starts when the last branch is done. So what a branch
comes to is not one number: its end, the move of its last layer into the join, and its GPUs are kept as long as no other
choice is better in all three. The layers from fork to fork are a shortest path; its edges have a cheap lower bound, and
only those that may be on the path are worked out (A* with lazy edges).
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hpcdl.deeppool.costs import ROUNDING, CostTables, Floats
from hpcdl.deeppool.problem import BurstProblemError

_MOST_SHARES = 3000
_MOST_WIDTHS = 64
_MOST_AT_ONCE = 1 << 21
_ORDER = attrgetter("end_ms", "move_ms", "gpus")


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Layers one after another from a layer (outside) to another one. between: what lies before each layer, and after
    the last one: None, an edge, or the branches there.
    """

    layers: tuple[int, ...]
    between: tuple["tuple[Run, ...] | None", ...]


@dataclass(frozen=True, slots=True)
class BranchOption:
    """What branches may come to: milliseconds until the last ends, of their moves into the join, GPUs, and widths."""

    end_ms: float
    move_ms: float
    gpus: int
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ParallelChoice:
    """The place of each layer's width, when it starts, its first GPU, and when the last one ends."""

    places: tuple[int, ...]
    starts: tuple[float, ...]
    first_gpus: tuple[int, ...]
    time_ms: float


def least_time_side_by_side(tables: CostTables) -> ParallelChoice | None:
    """The fastest choice with branches side by side; None: no choice keeps the limit and fits on the GPUs.

    BurstProblemError where branches cross, so that it is not defined which of them run side by side.
    """
    many = len(tables.own)
    whole = _with_ends(tables)
    top = _reduced(whole)
    if len(tables.widths) > _MOST_WIDTHS and any(top.between):
        raise BurstProblemError(
            f"{len(tables.widths)} widths are too many to search with branches side by side, "
            f"{_MOST_WIDTHS} are the most: take powers-of-two"
        )
    found = _ForkSearch(whole).shortest(top)
    if found is None:
        return None
    places = dict(found)
    starts, firsts = {many: 0.0}, dict.fromkeys(range(many + 2), 0)
    chosen = [places[layer] for layer in range(many + 2)]
    end = _schedule(whole, top, chosen, 0.0, 0, starts, firsts)
    return ParallelChoice(
        tuple(chosen[:many]),
        tuple(starts[layer] for layer in range(many)),
        tuple(firsts[layer] for layer in range(many)),
        end,
    )


def too_many_branches(tables: CostTables) -> tuple[int, int] | None:
    """The first layer that joins branches which need more GPUs than there are, and how many; None: none does."""
    many = len(tables.own)

    def joins(run: Run, join: int) -> Iterator[tuple[int, int]]:
        for at, branches in enumerate(run.between):
            if branches:
                target = run.layers[at] if at < len(run.layers) else join
                for branch in branches:
                    yield from joins(branch, target)
                yield target, sum(_gpus_of(tables, branch, None) for branch in branches)

    short = [(join, gpus) for join, gpus in joins(_reduced(_with_ends(tables)), many) if gpus > tables.problem.gpus]
    return (min(short[0][0], many - 1), short[0][1]) if short else None


def measure_side_by_side(tables: CostTables) -> Callable[[Sequence[int]], tuple[float, int]]:
    """What gives, of the places of the layers' widths, the time of the iteration and the GPUs that it needs."""
    whole = _with_ends(tables)
    top = _reduced(whole)

    def measure(places: Sequence[int]) -> tuple[float, int]:
        chosen = (*places, 0, 0)
        return _schedule(whole, top, chosen, 0.0, 0, {}, {}), _gpus_of(whole, top, chosen)

    return measure


def _with_ends(tables: CostTables) -> CostTables:
    """The tables with two layers more that cost nothing: one before all others, and one after them."""
    many, widths = len(tables.own), len(tables.widths)
    nothing = np.zeros((widths, widths))
    fixed = np.full(widths, np.inf)
    fixed[0] = 0.0
    sources = [layer for layer in range(many) if not tables.inputs[layer]]
    sinks = tuple(layer for layer in range(many) if not tables.readers[layer])
    inputs = [(many,) if layer in set(sources) else theirs for layer, theirs in enumerate(tables.inputs)]
    moves = [nothing if layer in set(sinks) else move for layer, move in enumerate(tables.moves)]
    return replace(
        tables,
        inputs=(*inputs, (), sinks),
        own=(*tables.own, fixed, fixed),
        moves=(*moves, nothing, nothing),
        allowed=(*tables.allowed, np.inf, np.inf),
        one_gpu=(*tables.one_gpu, 0.0, 0.0),
    )


def _reduced(tables: CostTables) -> Run:
    """All layers as one run, by series and parallel reductions. BurstProblemError: branches cross."""
    first, last = len(tables.own) - 2, len(tables.own) - 1
    edges: dict[tuple[int, int], list[Run]] = {}
    before: dict[int, set[int]] = {layer: set() for layer in range(len(tables.own))}
    after: dict[int, set[int]] = {layer: set() for layer in range(len(tables.own))}
    for layer, theirs in enumerate(tables.inputs):
        for other in theirs:
            edges[other, layer] = [Run((), (None,))]
            before[layer].add(other)
            after[other].add(layer)
    waiting = [layer for layer in range(len(tables.own)) if layer not in (first, last)]
    while waiting:
        layer = waiting.pop()
        if len(before[layer]) != 1 or len(after[layer]) != 1:
            continue
        (source,), (target,) = before[layer], after[layer]
        into, out = _merged(edges.pop((source, layer))), _merged(edges.pop((layer, target)))
        joined = Run((*into.layers, layer, *out.layers), (*into.between, *out.between))
        edges.setdefault((source, target), []).append(joined)
        before[layer], after[layer] = set(), set()
        after[source] = after[source] - {layer} | {target}
        before[target] = before[target] - {layer} | {source}
        waiting += [each for each in (source, target) if each not in (first, last)]
    if set(edges) != {(first, last)}:
        left = sorted({layer for pair in edges for layer in pair} - {first, last})
        names = ", ".join(repr(tables.problem.layers[layer].name) for layer in left[:4])
        raise BurstProblemError(
            f"layers {names}{', …' if len(left) > 4 else ''}: branches that cross cannot run side by side; "
            'plan them in sequence ("branches": "sequence")'
        )
    inner = _merged(edges[first, last])
    return Run((first, *inner.layers, last), (None, *inner.between, None))


def _merged(runs: Sequence[Run]) -> Run:
    """Runs between the same two layers as one run."""
    if len(runs) == 1:
        return runs[0]
    branches: list[Run] = []
    for run in runs:
        inner = run.between[0] if not run.layers else None
        branches += inner if inner else [run]
    return Run((), (tuple(branches),))


@lru_cache(maxsize=256)
def _shares(branches: int, widths: tuple[int, ...], gpus: int) -> NDArray[np.intp] | None:
    """Places of widths, one for each branch, whose sum fits on the GPUs and of which none can be the next one.

    None: too many of them.
    """
    if len(widths) ** max(0, branches - 1) > 100_000:
        return None

    def extend(chosen: tuple[int, ...], left: int, more: int) -> Iterator[tuple[int, ...]]:
        if not more:
            yield chosen
            return
        for place, width in enumerate(widths):
            if width > left - (more - 1):
                return
            if more > 1 or place + 1 == len(widths) or widths[place + 1] > left:
                yield from extend((*chosen, place), left - width, more - 1)

    kept = []
    for chosen in extend((), gpus, branches):
        left = gpus - sum(widths[place] for place in chosen)
        if all(place + 1 == len(widths) or widths[place + 1] - widths[place] > left for place in chosen):
            kept.append(chosen)
            if len(kept) > _MOST_SHARES:
                return None
    return np.array(kept, dtype=np.intp).reshape(-1, branches)


@dataclass
class _ForkSearch:
    tables: CostTables
    _ends: dict[int, list[Floats]] = field(default_factory=dict)
    _steps_known: dict[tuple[int, int, int], tuple[float, list[BranchOption]]] = field(default_factory=dict)
    _widths_known: dict[tuple[int, int, int, int, int | None], list[tuple[int, int]]] = field(default_factory=dict)
    _bounds: dict[tuple[int, int], Floats] = field(default_factory=dict)
    _branch_bounds: dict[int, Floats] = field(default_factory=dict)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        return tuple(int(width) for width in self.tables.widths)

    def shortest(self, top: Run) -> list[tuple[int, int]] | None:
        """The widths' places by layer of the fastest choice: A* from the first layer to the last."""
        many, layers = len(self.widths), top.layers
        steps = [self._least_steps(layers[at], top.between[at], layers[at - 1]) for at in range(1, len(layers))]
        to_go = [np.zeros(many)]
        for step in reversed(steps):
            to_go.append((step + to_go[-1]).min(axis=1))
        to_go.reverse()
        if not np.isfinite(to_go[0][0]):
            return None
        # (estimate, unique, place on the path, width, time until its end, exact?, widths so far)
        unique = 0
        heap: list[tuple[float, int, int, int, float, bool, tuple[tuple[int, int], ...]]] = [
            (float(to_go[0][0]), 0, 0, 0, 0.0, True, ((layers[0], 0),))
        ]
        done: set[tuple[int, int]] = set()
        while heap:
            _, _, at, width, time, exact, path = heapq.heappop(heap)
            if not exact:
                if (at, width) in done:
                    continue
                before = path[-1][1]
                option = self._exact_step(layers[at], top.between[at], layers[at - 1], before, width)
                if option is None:
                    continue
                own = float(self.tables.own[layers[at]][width])
                reached = time + option.end_ms + option.move_ms + own
                unique += 1
                heapq.heappush(
                    heap,
                    (
                        reached + float(to_go[at][width]), unique, at, width, reached, True,
                        (*path[:-1], *option.places, path[-1], (layers[at], width)),
                    ),
                )  # fmt: skip
                continue
            if (at, width) in done:
                continue
            done.add((at, width))
            if at == len(layers) - 1:
                return list(path)
            estimates = time + steps[at][width] + to_go[at + 1]
            for place in np.flatnonzero(np.isfinite(estimates)):
                unique += 1
                heapq.heappush(heap, (float(estimates[place]), unique, at + 1, int(place), time, False, path))
        return None

    def _room(self, layer: int) -> Floats:
        """By width, the most milliseconds of moves with which a layer keeps its limit."""
        tables = self.tables
        if tables.allowed[layer] == np.inf:
            return np.full(len(self.widths), np.inf)
        return tables.allowed[layer] * ROUNDING / tables.widths - tables.own[layer]

    def _least_steps(self, layer: int, branches: tuple[Run, ...] | None, source: int) -> Floats:
        """By the width of `source` and of `layer`: at least so long from the end of the one to that of the other."""
        tables = self.tables
        room, own = self._room(layer), tables.own[layer]
        if branches is None:
            move = tables.moves[source]
            return np.where(move <= room, move + own, np.inf)
        return np.where(room >= 0, self._least_branches(branches, source, len(self.widths) - 1) + own, np.inf)

    def _least_branches(self, branches: tuple[Run, ...], source: int, most: int) -> Floats:
        """By the widths of fork and join: branches and the move of the last one take at least so long.

        most: the place of the width up to which they have GPUs together: fewer than the next width.
        """
        known = self._bounds.get((id(branches), most))
        if known is None:
            known = self._bounds[id(branches), most] = self._bound_branches(branches, source, most)
        return known

    def _bound_branches(self, branches: tuple[Run, ...], source: int, most: int) -> Floats:
        wide = [branch for branch in branches if branch.layers]
        least: Floats = np.zeros((len(self.widths), len(self.widths)))
        if len(wide) < len(branches):
            least = self.tables.moves[source]
        each = [self._branch_bound(branch, source) for branch in wide]
        gpus = self.widths[most + 1] - 1 if most + 1 < len(self.widths) else self.tables.problem.gpus
        # Rounded down to widths, the GPUs of the branches are one of these shares, or fewer.
        shares = _shares(len(wide), self.widths[: most + 1], gpus)
        if shares is None:
            return np.asarray(np.maximum.reduce([least, *(bound[most] for bound in each)]))
        if not len(shares):
            return np.full_like(least, np.inf)
        together = np.maximum.reduce([bound[shares[:, column]] for column, bound in enumerate(each)])
        return np.asarray(np.maximum(least, together.min(axis=0)))

    def _branch_bound(self, branch: Run, source: int) -> Floats:
        """By the GPUs of the branch (up to the next width), and the widths of fork and join: at least so long."""
        known = self._branch_bounds.get(id(branch))
        if known is None:
            known = self._branch_bounds[id(branch)] = self._bound_branch(branch, source)
        return known

    def _bound_branch(self, branch: Run, source: int) -> Floats:
        ends = self._branch_ends(branch, source)[-1]
        last = branch.layers[-1]
        if branch.between[-1] is None:
            return np.asarray((ends[:, :, :, None] + self.tables.moves[last]).min(axis=2))
        inner = np.stack([self._least_branches(branch.between[-1], last, most) for most in range(len(self.widths))])
        return np.asarray((ends[:, :, :, None] + inner[:, None]).min(axis=2))

    def _branch_ends(self, branch: Run, source: int) -> list[Floats]:
        """Of each layer of a branch, by the GPUs of the branch, the fork's width and its own: it ends no earlier.

        It ends just then where no branches lie between the layers.
        """
        known = self._ends.get(id(branch))
        if known is not None:
            return known
        tables, many = self.tables, len(self.widths)
        wider = np.arange(many)[None, :] > np.arange(many)[:, None]
        ends: list[Floats] = []
        before = source
        for layer, branches in zip(branch.layers, branch.between, strict=False):
            own, room = tables.own[layer], self._room(layer)
            if branches is None:
                move = tables.moves[before]
                step = np.where(move <= room, move + own, np.inf)[None]
            else:
                inner = np.stack([self._least_branches(branches, before, most) for most in range(many)])
                step = np.where(room >= 0, inner + own, np.inf)
            if ends:
                now = (ends[-1][:, :, :, None] + step[:, None]).min(axis=2)
            else:
                now = np.broadcast_to(step, (many, many, many))
            ends.append(np.where(wider[:, None, :], np.inf, now))
            before = layer
        self._ends[id(branch)] = ends
        return ends

    def _exact_step(
        self, layer: int, branches: tuple[Run, ...] | None, source: int, before: int, width: int
    ) -> BranchOption | None:
        """The fastest way from the end of `source` to the start of `layer`, both of these widths, moves included."""
        if branches is None:
            return BranchOption(0.0, float(self.tables.moves[source][before, width]), 0, ())
        room = float(self._room(layer)[width])
        wide = [branch for branch in branches if branch.layers]
        still = sum(float(self.tables.moves[source][before, width]) for branch in branches if not branch.layers)
        shares = _shares(len(wide), self.widths, self.tables.problem.gpus)
        plain = all(each is None for branch in wide for each in branch.between)
        if plain and shares is not None and len(shares) * (len(wide) * len(self.widths)) ** 2 <= _MOST_AT_ONCE:
            return self._best_of_shares(wide, shares, source, before, width, room, still) if len(shares) else None
        least = float(self._least_branches(branches, source, len(self.widths) - 1)[before, width])
        for margin in (1.02, 1.1, 1.4, 3.0, np.inf):
            worst = least * margin if least else np.inf
            options = self._together(branches, source, before, width, worst)
            fitting = [option for option in options if option.move_ms <= room]
            if fitting:
                return min(fitting, key=lambda option: option.end_ms + option.move_ms)
        return None

    def _best_of_shares(
        self,
        wide: Sequence[Run],
        shares: NDArray[np.intp],
        source: int,
        before: int,
        width: int,
        room: float,
        still: float,
    ) -> BranchOption | None:
        """The best of branches without branches inside: over all shares of the GPUs, and over all times of the end.

        still: milliseconds that edges from fork to join add to the moves.
        """
        ends = [self._branch_ends(branch, source)[-1][:, before] for branch in wide]
        lines = np.stack([each[shares[:, at]] for at, each in enumerate(ends)], axis=1)
        moves = np.stack([self.tables.moves[branch.layers[-1]][:, width] for branch in wide])
        # With each share, branches end at this at the earliest, and these moves are the least: few may be the best.
        earliest = lines.min(axis=-1).max(axis=-1)
        at_best = earliest + np.where(np.isfinite(lines), moves, np.inf).min(axis=-1).sum(axis=-1)
        moved = np.where(lines <= earliest[:, None, None], moves, np.inf).min(axis=-1).sum(axis=-1)
        reached = np.where(moved + still <= room, earliest + moved, np.inf).min()
        kept = at_best <= reached * ROUNDING
        shares, lines = shares[kept], lines[kept]
        if not len(shares):
            return None
        limits = lines.reshape(len(shares), -1)
        in_time = np.where(lines[:, None] <= limits[:, :, None, None], moves, np.inf)
        moved = in_time.min(axis=-1).sum(axis=-1) + still
        total = np.where(moved <= room, limits + moved, np.inf)
        share, limit = divmod(int(total.argmin()), limits.shape[1])
        if not np.isfinite(total[share, limit]):
            return None
        lasts = in_time[share, limit].argmin(axis=-1)
        places: list[tuple[int, int]] = []
        for branch, most, last in zip(wide, shares[share], lasts, strict=True):
            places += self._widths_of(branch, source, int(most), before, int(last))
        gpus = sum(self.widths[most] for most in shares[share])
        return BranchOption(float(limits[share, limit]), float(moved[share, limit]), gpus, tuple(places))

    def _widths_of(
        self, branch: Run, source: int, most: int, before: int, last: int, many: int | None = None
    ) -> list[tuple[int, int]]:
        """The widths along a branch, or its first `many` layers, that ends at `last` as early as can be.

        There are no branches between these layers.
        """
        key = (id(branch), most, before, last, many)
        known = self._widths_known.get(key)
        if known is not None:
            return known
        ends = self._branch_ends(branch, source)[:many]
        chosen = [(branch.layers[len(ends) - 1], last)]
        for at in range(len(ends) - 2, -1, -1):
            layer, after = branch.layers[at], branch.layers[at + 1]
            move = self.tables.moves[layer][:, last]
            step = np.where(move <= self._room(after)[last], move, np.inf)
            last = int((ends[at][most, before] + step).argmin())
            chosen.append((layer, last))
        found = self._widths_known[key] = chosen[::-1]
        return found

    def _together(
        self, branches: tuple[Run, ...], source: int, before: int, width: int, worst: float
    ) -> list[BranchOption]:
        """What branches side by side may come to, from a width of the fork to one of the join.

        Choices whose end and moves together are above `worst` are left out, here and below.
        """
        each = [self._branch_options(branch, source, before, width, worst) for branch in branches]
        if not all(each):
            return []
        moves = [min(option.move_ms for option in options) for options in each]
        gpus = [min(option.gpus for option in options) for options in each]
        room, left = worst - sum(moves[1:]), self.tables.problem.gpus - sum(gpus[1:])
        found = [one for one in each[0] if one.gpus <= left and one.end_ms + one.move_ms <= room]
        for at, options in enumerate(each[1:], 1):
            room, left = worst - sum(moves[at + 1 :]), self.tables.problem.gpus - sum(gpus[at + 1 :])
            found = _undominated(
                BranchOption(
                    max(one.end_ms, other.end_ms),
                    one.move_ms + other.move_ms,
                    one.gpus + other.gpus,
                    (*one.places, *other.places),
                )
                for other in options
                for one in found
                if one.gpus + other.gpus <= left and max(one.end_ms, other.end_ms) + one.move_ms + other.move_ms <= room
            )
        return found

    def _branch_options(self, branch: Run, source: int, before: int, width: int, worst: float) -> list[BranchOption]:
        """What one branch may come to."""
        if not branch.layers:
            return [BranchOption(0.0, float(self.tables.moves[source][before, width]), 0, ())]
        if any(each is not None for each in branch.between):
            return self._nested(branch, source, before, width, worst)
        ends = self._branch_ends(branch, source)[-1][:, before]
        moves = self.tables.moves[branch.layers[-1]][:, width]
        # A wider width somewhere has to make the branch end earlier. For now `places` has the widest and the last.
        earlier = np.ones(ends.shape, dtype=bool)
        earlier[1:] = ends[1:] < ends[:-1]
        found = [
            BranchOption(float(ends[most, last]), float(moves[last]), self.widths[most], ((int(most), int(last)),))
            for most, last in zip(*np.nonzero(earlier & np.isfinite(ends) & (ends + moves <= worst)), strict=True)
        ]
        return [
            BranchOption(
                option.end_ms,
                option.move_ms,
                option.gpus,
                tuple(self._widths_of(branch, source, option.places[0][0], before, option.places[0][1])),
            )
            for option in _undominated(found)
        ]

    def _nested(self, branch: Run, source: int, before: int, width: int, worst: float) -> list[BranchOption]:
        """What a branch with branches inside may come to. Between its layers moves are part of the end."""
        first = next(at for at, branches in enumerate(branch.between) if branches is not None)
        states = {before: [BranchOption(0.0, 0.0, 0, ())]}
        last = source
        if first:
            states, last = self._before_branches(branch, source, before, width, worst, first), branch.layers[first - 1]
        for layer, branches in zip(branch.layers[first:], branch.between[first:], strict=False):
            room, own = self._room(layer), self.tables.own[layer]
            fresh: dict[int, list[BranchOption]] = {}
            for place, gpus in enumerate(self.widths):
                fresh[place] = _undominated(
                    BranchOption(
                        each.end_ms + step.end_ms + step.move_ms + float(own[place]),
                        0.0,
                        max(each.gpus, step.gpus, gpus),
                        (*each.places, *step.places, (layer, place)),
                    )
                    for start, reached in states.items()
                    if reached[0].end_ms + self._least_step(branches, last, start, place) + own[place] <= worst
                    for step in self._steps(branches, last, start, place, worst - reached[0].end_ms)
                    if step.move_ms <= room[place]
                    for each in reached
                    if each.end_ms + step.end_ms + step.move_ms + float(own[place]) <= worst
                )
            states, last = {place: options for place, options in fresh.items() if options}, layer
        return _undominated(
            BranchOption(
                each.end_ms + step.end_ms, step.move_ms, max(each.gpus, step.gpus), (*each.places, *step.places)
            )
            for start, reached in states.items()
            if reached[0].end_ms + self._least_step(branch.between[-1], last, start, width) <= worst
            for step in self._steps(branch.between[-1], last, start, width, worst - reached[0].end_ms)
            for each in reached
            if each.end_ms + step.end_ms + step.move_ms <= worst
        )

    def _before_branches(
        self, branch: Run, source: int, before: int, width: int, worst: float, many: int
    ) -> dict[int, list[BranchOption]]:
        """By the width of the last of the first `many` layers, between which no branches are: when it may end."""
        ends = self._branch_ends(branch, source)[many - 1][:, before]
        found: dict[int, list[BranchOption]] = {}
        for place in range(len(self.widths)):
            rest = 0.0
            if many == len(branch.layers):
                rest = self._least_step(branch.between[many], branch.layers[-1], place, width)
            options = [
                BranchOption(
                    float(ends[most, place]),
                    0.0,
                    self.widths[most],
                    tuple(self._widths_of(branch, source, most, before, place, many)),
                )
                for most in range(len(self.widths))
                if ends[most, place] + rest <= worst
                and np.isfinite(ends[most, place])
                and not (most and ends[most - 1, place] <= ends[most, place])
            ]
            if options:
                found[place] = _undominated(options)
        return found

    def _least_step(self, branches: tuple[Run, ...] | None, source: int, before: int, width: int) -> float:
        """At least so long takes a step with its moves, on however many GPUs."""
        if branches is None:
            return float(self.tables.moves[source][before, width])
        return float(self._least_branches(branches, source, len(self.widths) - 1)[before, width])

    def _steps(
        self, branches: tuple[Run, ...] | None, source: int, before: int, width: int, worst: float
    ) -> list[BranchOption]:
        if branches is None:
            return [BranchOption(0.0, float(self.tables.moves[source][before, width]), 0, ())]
        key = (id(branches), before, width)
        known, options = self._steps_known.get(key, (-np.inf, []))
        if known < worst:
            known = worst * 1.1
            options = self._together(branches, source, before, width, known)
            self._steps_known[key] = known, options
        return options


def _undominated(options: Iterable[BranchOption]) -> list[BranchOption]:
    kept: list[BranchOption] = []
    for option in sorted(options, key=_ORDER):
        for each in kept:
            if each.move_ms <= option.move_ms and each.gpus <= option.gpus:
                break
        else:
            kept.append(option)
    return kept


def _schedule(
    tables: CostTables,
    run: Run,
    chosen: Sequence[int],
    start: float,
    first_gpu: int,
    starts: dict[int, float],
    firsts: dict[int, int],
) -> float:
    """Fills in when the layers of a run start and on which GPU first; the time at which its last one ends."""
    now = start
    for at, branches in enumerate(run.between):
        if branches is not None:
            ends, gpu = [now], first_gpu
            for branch in branches:
                ends.append(_schedule(tables, branch, chosen, now, gpu, starts, firsts))
                gpu += _gpus_of(tables, branch, chosen)
            now = max(ends)
        if at < len(run.layers):
            layer = run.layers[at]
            starts[layer], firsts[layer] = now, first_gpu
            now += tables.layer_ms(layer, chosen)
    return now


def _gpus_of(tables: CostTables, run: Run, chosen: Sequence[int] | None) -> int:
    """The GPUs that a run needs at these widths, or at least."""
    own = [1 if chosen is None else int(tables.widths[chosen[layer]]) for layer in run.layers]
    inner = [sum(_gpus_of(tables, each, chosen) for each in branches) for branches in run.between if branches]
    return max([*own, *inner], default=0)
