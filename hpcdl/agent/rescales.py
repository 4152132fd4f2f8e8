"""What a part was told of memberships: only the newest counts, however often and in whatever order they come."""

from hpcdl.agent.packets import Rescale
from hpcdl.agent.startfile import IN_PROCESS, RESCALES, TORCHRUN
from hpcdl.wire.messages import RequestMessage


def membership_of(message: RequestMessage) -> Rescale:
    """The membership that a request to rescale asks for: a rank for each GPU. Raises ValueError."""
    request = message.request
    gpus = {} if request.placement is None else {share.node: len(share.gpus) for share in request.placement.shares}
    ranks = tuple(gpus.get(node, 1) for node in request.nodes)
    return Rescale(request.membership, request.nodes, ranks, request.address)


class Rescales:
    """`kind`: one of RESCALES. `newest`: None before the first. `left`: it was asked to go while the others stay."""

    def __init__(self, node: str, kind: str = RESCALES[0]) -> None:
        self._node = node
        self.kind = kind
        self.newest: Rescale | None = None
        self.left = False

    def take(self, message: RequestMessage) -> bool:
        """A request to rescale or to leave; whether it is news."""
        if message.request.kind == "leave":
            news, self.left = not self.left, True
            return news
        asked = membership_of(message)
        if self.left or (self.newest is not None and asked.membership <= self.newest.membership):
            return False
        self.newest = asked
        return True

    @property
    def elastic(self) -> bool:
        """Whether its ranks form memberships at all."""
        return self.kind in (IN_PROCESS, TORCHRUN)

    @property
    def leads(self) -> bool:
        """Whether this node is the first of the newest membership."""
        return not self.left and self.newest is not None and self.newest.nodes[0] == self._node
