"""The policy protocol and the registry. A policy has no hidden state and changes nothing: same view, same plan."""

from collections.abc import Callable, Sequence, Set
from typing import Protocol

from hpcdl.core.pilot import Hole, Pilot, PilotChoice, Waiting
from hpcdl.core.plan import Plan, View


class Policy(Protocol):
    """Decides which job gets which GPUs."""

    @property
    def name(self) -> str:
        """The name that `hpcdl config policy NAME` takes."""
        ...

    def decide(self, view: View) -> Plan:
        """The plan for a view. Pure; warm starts of solvers come from the jobs' last targets."""
        ...


class PilotPolicy(Protocol):
    """Decides which pilots to submit into the holes, and which not to wait for any more. Pure."""

    def __call__(
        self,
        view: View,
        plan: Plan,
        pilots: Sequence[Pilot],
        holes: Sequence[Hole],
        known: Set[str],
        waiting: Sequence[Waiting] = (),
    ) -> PilotChoice:
        """`plan`: the one that was just made for the view. `pilots`: those that live, and the last that ended.

        `known`: nodes whose agents have come and that are not lost, those that are away included. `waiting`: others'
        batch jobs that wait for nodes, the first to start first.
        """
        ...


class UnknownPolicy(ValueError):
    """No policy has that name; the message lists those that there are."""


class Policies:
    """Policies by name, made when first asked for."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], Policy]] = {}

    def register(self, name: str, maker: Callable[[], Policy]) -> None:
        """Adds a policy; a second one of the same name is a programming error."""
        if name in self._makers:
            raise ValueError(f"policy {name!r} is registered twice")
        self._makers[name] = maker

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self._makers))

    def make(self, name: str) -> Policy:
        """The policy of that name. Raises UnknownPolicy."""
        maker = self._makers.get(name)
        if maker is None:
            raise UnknownPolicy(f"no policy {name!r}; there are {', '.join(self.names())}")
        return maker()


ANY_OBJECTIVE = "any"


def deadlines_unheeded(policy: Policy, objective: str) -> str:
    """That the policy does nothing for deadlines under that objective, and what does; "" where it does.

    A policy that heeds them has `deadlines`: the objective under which it does, or ANY_OBJECTIVE.
    """
    heeds = getattr(policy, "deadlines", "")
    if heeds in (ANY_OBJECTIVE, objective):
        return ""
    if heeds:
        does = f"the objective {objective}: hpcdl config objective {heeds} does"
    else:
        does = f"the policy {policy.name}: hpcdl config policy adaptive with hpcdl config objective deadline does"
    return f"deadlines are not scheduled for under {does}; this one is only watched"
