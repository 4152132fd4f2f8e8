"""Process groups that come and go within one process: meet at a store, form the group, leave it, break it off.

PyTorch is imported at the first use. Nothing here waits for a peer longer than it takes to ask `check` again, save
for the forming itself, when every peer has just shown that it is there.
"""

from __future__ import annotations

import fcntl
import gc
import ipaddress
import json
import os
import socket
import stat
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hpcdl.trainer.group.membership import Membership

LOCAL_STORE = "HPCDL_LOCAL_STORE"  # a file for the ranks of one node to meet at; hpcdl.trainer.ranks sets it
FORM_S = 10.0  # for a group whose ranks are all there
CONNECT_S = 1.0
CONNECT_PAUSE_S = 0.02
ASK_S = 0.005  # between two looks at who is there, and at the channel; more where there are many ranks, for the store
ASK_EACH_S = 0.0001  # for each rank
LOST = ("/gloo/", "gloo::", "NCCL", "Connection closed by peer", "Connection reset by peer", "Broken pipe")
SIOCGIFADDR = 0x8915


class OwnStore:
    """The store that this process keeps for others to meet at, as long as it lives; bound to `address` alone."""

    def __init__(self, address: str) -> None:
        import torch.distributed as dist

        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((address, 0))
            listener.listen(1024)
            port = listener.getsockname()[1]
            self.address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            self.store = dist.TCPStore(
                address,
                port,
                is_master=True,
                timeout=timedelta(seconds=CONNECT_S),
                master_listen_fd=listener.detach(),
            )


def meet(
    wanted: Membership, rank: int, scope: str, about: dict[str, Any], check: Callable[[], None]
) -> tuple[Any, list[dict[str, Any]]]:
    """The store of a membership, once all its ranks have come; and what each says about itself, by rank.

    `scope` keeps apart what shares a store. `check` is called all the time, and leaves by raising. A store that is
    not there is looked for again.
    """
    import torch.distributed as dist

    host, port = wanted.store
    names = [f"here/{each}" for each in range(wanted.size)]
    while True:
        check()
        try:
            socket.create_connection((host, port), CONNECT_S).close()  # PyTorch's own attempt cannot be interrupted
            client = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=CONNECT_S))
            store = dist.PrefixStore(f"hpcdl/{scope}/{wanted.number}", client)
            store.set(f"here/{rank}", json.dumps(about))
            while not store.check(names):
                check()
                time.sleep(max(ASK_S, ASK_EACH_S * wanted.size))
            return store, [json.loads(each) for each in store.multi_get(names)]
        except (OSError, dist.DistError):
            time.sleep(CONNECT_PAUSE_S)


class ProcessGroup:
    """The default process group of PyTorch, from here to `dissolve`."""

    def __init__(self, backend: str | None, store: Any, rank: int, size: int, timeout_s: float) -> None:
        """Forms it. `backend` None: gloo on CPU tensors, and NCCL on those of GPUs where there are any. `store` None:
        by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as launchers set them. `timeout_s`: for a collective."""
        import torch
        import torch.distributed as dist

        if backend is None:
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        # NCCL's own watchdog would end the process when a peer is lost. Here the collective must fail, and before the
        # gradients that it left half done are used: so the process waits for it, and not only the GPU.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        before = set(connections())
        if store is None:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        else:
            quick = timedelta(seconds=min(FORM_S, timeout_s))
            store = dist.PrefixStore("group", store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=quick)
            _allow(timedelta(seconds=timeout_s))
        # Some of these may be another thread's; so a number counts only while it is the same connection.
        self._connections = set(connections()) - before
        self._timeout_s = timeout_s
        self._first: dict[int, Any] = {}  # subgroups, by how many ranks they have
        self._wrapped: list[weakref.ref[Any]] = []

    def wrap(self, module: Any, **options: Any) -> Any:
        """DistributedDataParallel on this group."""
        import torch

        wrapped = torch.nn.parallel.DistributedDataParallel(module, **options)
        self._wrapped.append(weakref.ref(wrapped))
        return wrapped

    def first(self, width: int) -> Any:
        """The group of ranks 0 to width-1. Collective over all ranks at the first call for a width."""
        import torch.distributed as dist

        from hpcdl.trainer.torch import keep_gloo

        if width == dist.get_world_size():
            return dist.group.WORLD
        if width not in self._first:
            before = set(connections())
            quick = timedelta(seconds=min(FORM_S, self._timeout_s))
            group = dist.new_group(list(range(width)), timeout=quick)
            if dist.get_rank() < width:
                _allow(timedelta(seconds=self._timeout_s), group)
                if "gloo" in dist.get_backend(group):
                    keep_gloo(group)
            self._connections |= set(connections()) - before
            self._first[width] = group
        return self._first[width]

    def cut(self) -> None:
        """Make whatever collective is under way fail: from another thread, when a peer is gone without a word."""
        import torch

        self._shut_connections()
        if torch.cuda.is_available():
            self._abort()

    def _shut_connections(self) -> None:
        for number, _ in set(connections()) & self._connections:
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def dissolve(self, lost: bool = False) -> None:
        """Leave the group; `lost`: because a collective failed. What was wrapped on it is of no more use, and must not
        hook into a later backward pass. Who still waits for this rank in a collective that was lost fails, too, even if
        something here holds on to the group."""
        import torch.distributed as dist

        from hpcdl.trainer.torch import keep_gloo

        if any(each() is not None for each in self._wrapped):
            gc.collect()  # a cycle, of a traceback perhaps, still holds it
        if lost:
            self.cut()  # NCCL would wait for what can never end
            if dist.is_initialized() and dist.get_backend() == "gloo":
                keep_gloo()  # with what it still had under way its end may wait for its own threads, for ever
        with suppress(RuntimeError):  # of a peer that is gone
            if dist.is_initialized():
                dist.destroy_process_group()

    @staticmethod
    def _abort() -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        with suppress(RuntimeError):
            if dist.is_initialized():
                distributed_c10d._abort_process_group()


def _allow(timeout: timedelta, group: Any = None) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    distributed_c10d._set_pg_timeout(timeout, group or dist.group.WORLD)


def device() -> Any:
    """The torch.device of this rank: its GPU, or the CPU where there is none."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK") or os.environ.get("HPCDL_LOCAL_RANK") or 0)
    found = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def lost(error: BaseException) -> bool:
    """Whether an error says that a collective failed because ranks lost each other; any other is the script's own."""
    import torch.distributed as dist

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, dist.DistError):
            return True
        if type(seen) is RuntimeError and any(text in str(seen) for text in LOST):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def connections() -> Iterator[tuple[int, int]]:
    """TCP connections of this process: descriptor, and inode, which distinguishes it from a later one of the same
    number.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            number = int(name)
            about = os.fstat(number)
            if not stat.S_ISSOCK(about.st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    found.getpeername()  # raises where it is not connected
                    yield number, about.st_ino
        except OSError:
            continue


def choose_interface(address: str) -> None:
    """Let gloo and NCCL use the interface that has this address, unless the environment chose one already. Without
    it they take what the host's name resolves to, which often is a loopback address."""
    name = interface_of(address)
    if name is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, name)


def interface_of(address: str) -> str | None:
    try:
        wanted = ipaddress.ip_address(address)
    except ValueError:
        return None
    if wanted.is_loopback:
        return "lo"
    if wanted.version == 6:
        with suppress(OSError), open("/proc/net/if_inet6") as table:
            for line in table:
                digits, *_, name = line.split()
                if int(digits, 16) == int(wanted):
                    return name
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                if fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)[20:24] == wanted.packed:
                    return name
    return None
