"""The state file of an emulated cluster: read, changed under a lock, and the scheduler woken."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tests.lsf.emulator.records import Config, Host, Job, Queue, Reservation, State


class Store:
    """The folder of one emulated cluster, LSFEMU_HOME."""

    def __init__(self, home: str) -> None:
        self.home = home

    def path(self, *names: str) -> str:
        return os.path.join(self.home, *names)

    def config(self) -> Config:
        with open(self.path("cluster.json")) as file:
            values = json.load(file)
        values["hosts"] = tuple(Host(**host) for host in values["hosts"])
        values["queues"] = tuple(Queue(**queue) for queue in values["queues"])
        return Config(**values)

    def write_config(self, config: Config) -> None:
        self._replace("cluster.json", config)

    def read(self) -> State:
        """The state, whole: it is only ever replaced by a rename."""
        try:
            with open(self.path("state.json")) as file:
                values = json.load(file)
        except FileNotFoundError:
            return State()
        # A command that came before the scheduler's first turn has written only what it set.
        values["jobs"] = tuple(Job(**job) for job in values.get("jobs", ()))
        values["reservations"] = tuple(Reservation(**each) for each in values.get("reservations", ()))
        return State(**values)

    @contextmanager
    def change(self, *, wake: bool = True) -> Iterator[State]:
        """The state, written when the block ends without an error."""
        with open(self.path("lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            yield state
            self._replace("state.json", state)
        if wake:
            self.wake()

    def wake(self) -> None:
        with suppress(OSError):
            pipe = os.open(self.path("wake"), os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b".")
            finally:
                os.close(pipe)

    def _replace(self, name: str, value: Config | State) -> None:
        path = self.path(name)
        with open(path + ".new", "w") as file:
            json.dump(value, file, default=_plain)
        os.replace(path + ".new", path)


def _plain(value: Any) -> Any:
    return value.__dict__
