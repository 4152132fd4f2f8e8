"""A problem and its answer as one JSON line each: between the daemon and a process of its own that solves it.

Both ends are of the same version of hpcdl. Node names do not matter for numbers of nodes, and are left out.
"""

import msgspec

from hpcdl.milp.model import SolverError, SolverLimits
from hpcdl.milp.problem import NodeGroup, Problem
from hpcdl.milp.solve import ProblemAnswer
from hpcdl.solver import Allotment, ElasticTrainer, ThroughputCurve


class TrainerNumbers(msgspec.Struct, array_like=True):
    """An `ElasticTrainer`."""

    curves: list[list[tuple[int, float]] | None]
    fewest: int
    most: int
    sizes: tuple[int, ...]
    now: int
    group: int
    up_s: float
    down_s: float
    weight: float


class Question(msgspec.Struct):
    """A problem, without names, and who is to solve it within which limits."""

    solver: str
    work: int
    seconds: float
    horizon_s: float
    capacities: list[int]
    trainers: list[TrainerNumbers]


class Reply(msgspec.Struct):
    """An answer; or `error`: why there is none. A bound that is not known is None."""

    counts: tuple[int, ...] = ()
    groups: tuple[int | None, ...] = ()
    value: float = 0.0
    bound: float | None = None
    optimal: bool = False
    solver: str = ""
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""


def question_text(problem: Problem, solver: str, limits: SolverLimits) -> str:
    """The question as JSON."""
    trainers = [
        TrainerNumbers(
            [None if curve is None else list(curve.points) for curve in each.curves],
            each.fewest, each.most, each.sizes, each.now, each.group, each.up_s, each.down_s, each.weight,
        )
        for each in problem.trainers
    ]  # fmt: skip
    asked = Question(solver, limits.work, limits.seconds, problem.horizon_s, problem.capacities, trainers)
    return msgspec.json.encode(asked).decode()


def read_question(text: str) -> tuple[Problem, str, SolverLimits]:
    """What `question_text` was given. ValueError: it is no question."""
    asked = msgspec.json.decode(text, type=Question)
    trainers = tuple(
        ElasticTrainer(
            tuple(None if points is None else ThroughputCurve(tuple(points)) for points in each.curves),
            each.fewest, each.most, each.sizes, each.now, each.group, each.up_s, each.down_s, each.weight,
            asked.horizon_s,
        )
        for each in asked.trainers
    )  # fmt: skip
    problem = numbered(trainers, asked.capacities)
    return problem, asked.solver, SolverLimits(asked.work, asked.seconds)


def numbered(trainers: tuple[ElasticTrainer, ...], capacities: list[int]) -> Problem:
    """The problem of these trainers on so many nodes of each group; groups and trainers are called by their numbers."""
    groups = tuple(NodeGroup(str(number), many) for number, many in enumerate(capacities))
    ids = tuple(str(number) for number in range(len(trainers)))
    horizon_s = trainers[0].horizon_s if trainers else 0.0
    return Problem(horizon_s, groups, ids, trainers, ((),) * len(trainers))


def reply_text(answer: ProblemAnswer) -> str:
    """The answer as JSON."""
    found = answer.allotment
    bound = found.bound if abs(found.bound) < float("inf") else None
    reply = Reply(
        found.counts, found.groups, found.value, bound, found.optimal, found.solver, answer.warnings, answer.seconds
    )
    return msgspec.json.encode(reply).decode()


def refusal_text(error: str) -> str:
    """That there is no answer, as JSON."""
    return msgspec.json.encode(Reply(error=error)).decode()


def read_reply(text: str, trainers: int) -> ProblemAnswer:
    """The answer for so many trainers. SolverError: it is none."""
    try:
        reply = msgspec.json.decode(text, type=Reply)
    except ValueError as error:
        raise SolverError(f"what its process prints is no answer: {error}") from None
    if reply.error:
        raise SolverError(reply.error)
    if not len(reply.counts) == len(reply.groups) == trainers:
        raise SolverError(f"it answers for {len(reply.counts)} of {trainers} trainers")
    bound = float("inf") if reply.bound is None else reply.bound
    found = Allotment(reply.counts, reply.groups, reply.value, bound, reply.optimal, reply.solver)
    return ProblemAnswer(found, reply.warnings, reply.seconds)
