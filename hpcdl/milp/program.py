"""BFTrainer's program over nodes (section 3, equations 1 to 16), and its answer as counts.

For each trainer j and each group g in which it may run (the paper has one group): x_jn says that it gets node n. A
trainer that has C nodes of a group may get N of the same group by keeping or by adding; in another group it has C = 0.

Equations 3, 4 and 11 to 16 are about N_j alone: in the paper yes-or-no variables and a big M for each condition. Here
they are one choice among the pieces of its value (counts_program.py), which is the same, and as tight as such rows can
be: y^l is the piece of no node, z^u are the pieces above C together, z^d those below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcdl.milp.counts_program import CountPiece, choice_of_counts
from hpcdl.milp.model import IntegerProgram
from hpcdl.milp.problem import Problem
from hpcdl.solver.rows import read


@dataclass(slots=True)
class NodeLevel:
    """The program, and where in it the nodes of each (trainer, group) are. What it costs x `scale` is our objective."""

    model: IntegerProgram
    scale: float
    nodes: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def chosen(self, trainers: int, values: Sequence[float]) -> list[tuple[int, int]]:
        """(nodes, group) of each trainer."""
        found = [(0, 0)] * trainers
        for (trainer, group), columns in self.nodes.items():
            number = sum(values[column] > 0.5 for column in columns)
            if number:
                found[trainer] = (number, group)
        return found


def node_level(problem: Problem) -> NodeLevel:
    """The mixed integer program of a problem (equations 1 to 16); it begins with the current map, as far as that is
    allowed."""
    choice = choice_of_counts(read(problem.trainers, problem.capacities))
    model, stay = choice.model, problem.stay("")
    program = NodeLevel(model, -choice.unit)
    for pieces, nodes, where in zip(choice.pieces, stay.counts, stay.groups, strict=True):
        _begin(model, pieces, nodes, where)
    holders = _holders(problem)
    for trainer, group in problem.places():
        mine = [node for node, owner in enumerate(holders[group]) if owner == trainer]
        kept = set(mine[: stay.counts[trainer] if stay.groups[trainer] == group else 0])
        x = [model.binary(start=float(node in kept)) for node in range(problem.groups[group].size)]
        program.nodes[trainer, group] = x
        its = [piece for piece in choice.pieces[trainer] if piece.group == group]
        most = max(piece.last for piece in its)
        size = model.column(0.0, float(most), integer=True, start=float(len(kept)))
        model.row(0.0, 0.0, [(size, 1.0), *((each, -1.0) for each in x)])  # equation 2: N_j = sum x_jn
        model.row(0.0, 0.0, [(size, -1.0), *(term for piece in its for term in piece.nodes)])
        if mine:
            _no_migration(model, x, mine, most, _above(model, its, len(mine), problem.trainers[trainer].now))
    for group, size_of in enumerate(problem.capacities):  # equation 5: a node is one trainer's
        columns = [each for (_, where), each in program.nodes.items() if where == group]
        if len(columns) > 1:
            for node in range(size_of):
                model.row(-math.inf, 1.0, [(each[node], 1.0) for each in columns])
    return program


def _holders(problem: Problem) -> list[list[int | None]]:
    """Of each node of each group the trainer that has it now; where nodes have no names, the first ones in turn."""
    found: list[list[int | None]] = [[None] * group.size for group in problem.groups]
    numbers = [{name: at for at, name in enumerate(group.names or ())} for group in problem.groups]
    following = [0] * len(problem.groups)
    for number, trainer in enumerate(problem.trainers):
        group = trainer.group
        if problem.groups[group].names is not None:
            for name in problem.held[number]:
                found[group][numbers[group][name]] = number
        else:
            until = min(following[group] + trainer.now, problem.groups[group].size)
            for node in range(following[group], until):
                found[group][node] = number
            following[group] = until
    return found


def _begin(model: IntegerProgram, pieces: Sequence[CountPiece], nodes: int, group: int | None) -> None:
    """A trainer begins with so many nodes of that group."""
    where = -1 if group is None else group
    piece = next(each for each in pieces if each.group == where and each.first <= nodes <= each.last)
    model.start[piece.taken] = 1.0
    if piece.more >= 0:
        model.start[piece.more] = float(nodes - piece.first)


def _above(model: IntegerProgram, pieces: Sequence[CountPiece], held: int, now: int) -> list[int]:
    """Binaries of which one is 1 where a trainer gets more nodes than it holds, and none where it gets fewer.

    It may hold fewer than it had, since some have left: pieces end at what it had, so that a binary of its own tells.
    """
    return [each.taken for each in pieces if each.first > held] if held == now else [model.binary()]


def _no_migration(model: IntegerProgram, x: list[int], mine: list[int], most: int, above: list[int]) -> None:
    """Equations 9 and 10 for a trainer that holds the nodes `mine`: |N - C| = sum of u, where u_n = x_n xor c_n.

    c_n is known, so that u_n is x_n or 1 - x_n, and z_j is 1 less the sum of `above`. What is left of equation 10 then
    is: who grows keeps all (with M = C), who does not takes no other node (with M = most - C).
    """
    held, more = set(mine), float(max(0, most - len(mine)))
    model.row(0.0, math.inf, [*((x[node], 1.0) for node in mine), *((each, -float(len(mine))) for each in above)])
    others = [(column, 1.0) for node, column in enumerate(x) if node not in held]
    model.row(-math.inf, 0.0, [*others, *((each, -more) for each in above)])
