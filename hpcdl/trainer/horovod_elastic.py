"""Elastic Horovod, with PyTorch or TensorFlow, where hpcdl's agents are what finds the hosts: `--rescale horovod`.

The ranks keep their processes, as all that are rescaled in place do (group/in_place.py): they learn the next
membership from their supervisors, so no driver, discovery script or ssh is needed. `state.commit()` is where they go
from one membership to the next, where checkpoints are written, and where a suspend is heeded.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hpcdl.trainer.torch as saving
from hpcdl.trainer import horovod_rendezvous
from hpcdl.trainer.group import process_groups
from hpcdl.trainer.group.in_place import InPlace, Training, World
from hpcdl.trainer.group.membership import Membership
from hpcdl.trainer.group.peers import RankAgreement
from hpcdl.trainer.group.process_groups import ProcessGroup
from hpcdl.trainer.horovod import HorovodRanks, load_tensorflow, save_tensorflow
from hpcdl.trainer.horovod_rendezvous import Rendezvous, StoreLost, sizes, slot
from hpcdl.trainer.session import IN_PROCESS, attach

OBJECTS = "objects.json"
STEP = "step"
STORE_KEY = "horovod"  # in the membership's store: where its rendezvous is
TIMEOUT_S = 1800.0

if os.environ.get("HPCDL_RESCALE") == IN_PROCESS:
    os.environ["HOROVOD_ELASTIC"] = "1"  # or an optimizer that is made of one rank alone asks no others, ever


def run(*, total: int | None = None, every: int | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """In the place of `@hvd.elastic.run`: `@horovod_elastic.run(total=10000, every=500)`.

    The state has an attribute `step`, the number of steps that are done, and the script calls `state.commit()` after
    each of them; `total` of them are to be done (HPCDL_STEPS without it). A checkpoint is written every `every` steps,
    when a suspend was asked for, and at the end; what the state holds besides models, optimizers and samplers must be
    what JSON can hold. The state is a TorchState, or a TensorFlowState of all variables that are to be kept. Outside of
    hpcdl it is `hvd.elastic.run`.
    """

    def decorate(train: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(train)
        def wrapper(state: Any, *given: Any, **named: Any) -> None:
            training_class = TensorFlowTraining if hasattr(state, "variables") else ElasticTraining
            hvd = importlib.import_module(training_class.horovod)
            session = attach()
            if not session.inside:
                hvd.elastic.run(train)(state, *given, **named)
                return
            whole = session.total if total is None else total
            if whole is None:
                raise ValueError("say how many steps there are: run(total=...), or submit with --steps")
            training = training_class(hvd, state, lambda: train(state, *given, **named), whole, every)
            if session.rescale == IN_PROCESS:
                hvd.shutdown()  # the one of this rank alone, if the script began with that
                InPlace(training, TIMEOUT_S).run()
            else:
                training.run_fixed()

        return wrapper

    return decorate


class ElasticTraining(Training):
    """The script's state, PyTorch's, as a training that is rescaled: `state.step` is how far it is."""

    horovod = "horovod.torch"

    def __init__(self, hvd: Any, state: Any, train: Callable[[], Any], total: int, every: int | None) -> None:
        self._hvd = hvd
        self._state = state
        self._function = train
        self._world: World | None = None
        self._began = 0.0
        if not hasattr(state, STEP):
            raise ValueError(f"the state must have an attribute {STEP}: {type(state).__name__}(..., {STEP}=0)")
        super().__init__(attach(), self._train, self._parts(), total, every, agree_every=1)
        state.check_host_updates = self._committed

    def _parts(self) -> dict[str, Any]:
        """What a checkpoint holds besides the objects."""
        return {name: handler.value for name, handler in self._state._handlers.items()}

    def run_fixed(self) -> None:
        """The ranks that a launcher has started, from their start to their end."""
        ranks, session = self.ranks(), self.session
        random = self.load() if session.writer else ""
        self.spread(0, not session.writer, random)
        self.over = ranks.any(self.over)
        self.held = True
        self.announce = lambda: session.ready(self.step)
        self.run(World(self, None, session.rank, self._hvd.size(), session.membership))
        ranks.barrier()

    def _train(self, world: World) -> None:
        """The script's function, for one membership."""
        self._world = world
        self._state.save()
        self._state.on_reset()
        self._began = self.begin(world)
        self._function()

    def _committed(self) -> None:
        """What `state.commit()` does after it has saved the state in memory."""
        assert self._world is not None
        if self._state.step == self.step:
            return
        self.step = self._state.step - 1
        self.end(self._world, self._began)
        if self.step < self.total:
            self.between(self._world)
        self._began = self.begin(self._world)

    # by Horovod

    def ranks(self) -> RankAgreement:
        return HorovodRanks()

    def most(self, mine: list[Any], size: int) -> list[int]:
        everybody = [json.loads(each) for each in HorovodRanks().gather(json.dumps([int(each) for each in mine]))]
        return [max(each) for each in zip(*everybody)]

    def lost(self, error: Exception) -> bool:
        from horovod.common.exceptions import HorovodInternalError

        return isinstance(error, (HorovodInternalError, StoreLost))

    def recover(self) -> None:
        self._state.restore()  # and the optimizer forgets what it waited for
        self.step = self._state.step
        for part in self.parts.values():
            if hasattr(part, "zero_grad"):
                part.zero_grad()

    def group(self, store: Any, rank: int, wanted: Membership, timeout_s: float) -> ProcessGroup:
        return HorovodGroup(self._hvd, store, rank, wanted, self.session.node, self.session.local_rank)

    # state

    def _write(self, folder: Path) -> None:
        saving.save_parts(folder, self.parts, self.ranks())
        if self.session.writer:
            (folder / OBJECTS).write_text(json.dumps(self._objects()))

    def _read(self, folder: Path) -> None:
        super()._read(folder)
        self._set_objects(json.loads((folder / OBJECTS).read_text()))

    def spread(self, source: int, take: bool, random: str) -> None:
        optimizers = {name: part for name, part in self.parts.items() if hasattr(part, "param_groups")}
        mine = {
            "objects": self._objects(),
            "optimizers": [name for name, part in optimizers.items() if part.state],
        }
        theirs = json.loads(self.ranks().gather(json.dumps(mine))[source])
        # Horovod makes a step of an optimizer without a state, to have one; one that has none anywhere keeps none.
        for name in theirs["optimizers"]:
            self._hvd.broadcast_optimizer_state(optimizers[name], root_rank=source)
        for name, part in self.parts.items():
            if name not in optimizers:
                self._hvd.broadcast_parameters(part.state_dict(), root_rank=source)
        self._set_objects(theirs["objects"])
        self.step = self._state.step

    def _objects(self) -> dict[str, Any]:
        return {name: getattr(self._state, name) for name in self._state._saved_state}

    def _set_objects(self, objects: Mapping[str, Any]) -> None:
        for name, value in objects.items():
            setattr(self._state, name, value)


class TensorFlowTraining(ElasticTraining):
    """As ElasticTraining, of a TensorFlowState: the parts are its variables. PyTorch is not needed, so the ranks meet
    at a store of Horovod's kind."""

    horovod = "horovod.tensorflow"

    def _parts(self) -> dict[str, Any]:
        return {"variables": list(self._state.variables)}

    def lost(self, error: Exception) -> bool:
        errors = sys.modules["tensorflow"].errors
        by_horovod = isinstance(error, (errors.UnknownError, errors.AbortedError)) and "Horovod" in str(error)
        return by_horovod or super().lost(error)

    def own_store(self, address: str) -> Any:
        store = Rendezvous(address, {})
        store.start()
        return store

    def meet(
        self, wanted: Membership, rank: int, scope: str, about: dict[str, Any], check: Callable[[], None]
    ) -> tuple[Any, list[dict[str, Any]]]:
        return horovod_rendezvous.meet(wanted, rank, scope, about, check)

    def device(self) -> Any:
        """TensorFlow's own choice: this rank sees its GPU alone."""

    def _write(self, folder: Path) -> None:
        save_tensorflow(folder, self.parts, HorovodRanks())
        if self.session.writer:
            (folder / OBJECTS).write_text(json.dumps(self._objects()))

    def _read(self, folder: Path) -> None:
        load_tensorflow(folder, self.parts)
        self._set_objects(json.loads((folder / OBJECTS).read_text()))

    def spread(self, source: int, take: bool, random: str) -> None:
        self._hvd.broadcast_variables(self.parts["variables"], root_rank=source)
        self._set_objects(json.loads(self.ranks().gather(json.dumps(self._objects()))[source]))
        self.step = self._state.step


class HorovodGroup(ProcessGroup):
    """Horovod, initialised for one membership; `store`: where its ranks have met."""

    def __init__(self, hvd: Any, store: Any, rank: int, wanted: Membership, node: str, local_rank: int) -> None:
        self._hvd = hvd
        self._rendezvous: Rendezvous | None = None
        address = wanted.store[0]
        if rank == 0:
            self._rendezvous = Rendezvous(address, sizes(wanted.nodes, wanted.ranks))
            self._rendezvous.start()
            store.set(STORE_KEY, str(self._rendezvous.server_address[1]))
        port = int(store.get(STORE_KEY))
        mine = slot(wanted.ranks, wanted.nodes.index(node), local_rank)
        os.environ.update(mine.environment(node, address, port, process_groups.interface_of(address)))
        mine.put(node, address, port)
        before = set(process_groups.connections())
        hvd.init()
        self._connections = set(process_groups.connections()) - before
        self._wrapped = []

    def cut(self) -> None:
        self._shut_connections()

    def dissolve(self, lost: bool = False) -> None:
        if lost:
            self.cut()  # or those who wait for this rank in the collective that was lost notice nothing
        self._hvd.shutdown()
        if self._rendezvous is not None:
            self._rendezvous.shutdown()
            self._rendezvous.server_close()
            self._rendezvous = None
