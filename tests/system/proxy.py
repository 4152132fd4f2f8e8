"""A TCP proxy on loopback that can be cut, or swallow what it is sent: the network partitions of the tests."""

import contextlib
import socket
import threading

from hpcdl.wire.readable import readable


class Proxy:
    """Forwards to 127.0.0.1:`port` until it is cut or swallows; healed, it forwards new connections again."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._cut = self._swallowing = False
        self._swallowed: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._cut:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target), timeout=60)
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
                if self._swallowing:
                    self._swallowed |= {client, server}
            self._threads.append(threading.Thread(target=self._pump, args=(client, server), daemon=True))
            self._threads[-1].start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError, ValueError):
            open_ends = [client, server]
            while not self._closed:
                ready = readable([end.fileno() for end in open_ends], 1.0)
                for end in [end for end in open_ends if end.fileno() in ready]:
                    data = self._received(end)
                    if end in self._swallowed:
                        if not data:
                            open_ends.remove(end)  # the other end does not hear of that either
                    elif not data:
                        return
                    else:
                        (server if end is client else client).sendall(data)

    def _received(self, end: socket.socket) -> bytes:
        try:
            return end.recv(65536)
        except ConnectionResetError:
            return b""

    def cut(self) -> None:
        """Ends every connection and refuses new ones."""
        with self._lock:
            self._cut = True
            for pair in self._pairs:
                for end in pair:
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
            self._pairs.clear()

    def swallow(self) -> None:
        """A black hole: connections stay and new ones come about, and nothing arrives, not even that an end is gone."""
        with self._lock:
            self._swallowing = True
            self._swallowed.update(end for pair in self._pairs for end in pair)

    def heal(self) -> None:
        """Lets new connections through; those that it swallowed stay dead."""
        with self._lock:
            self._cut = self._swallowing = False

    def close(self) -> None:
        """For good."""
        self._closed = True
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join(60)
