"""A TCP proxy on loopback that can be cut: the network partition of the tests."""

import contextlib
import select
import socket
import threading


class Proxy:
    """Forwards to 127.0.0.1:`port` until it is cut; healed, it forwards new connections again."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._cut = False
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
                    server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
                except OSError:
                    client.close()
                    continue
                self._pairs.append((client, server))
            self._threads.append(threading.Thread(target=self._pump, args=(client, server), daemon=True))
            self._threads[-1].start()

    def _pump(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError, ValueError):
            while True:
                for end in select.select([client, server], [], [], 1.0)[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    (server if end is client else client).sendall(data)

    def cut(self) -> None:
        """Ends every connection and refuses new ones."""
        with self._lock:
            self._cut = True
            for pair in self._pairs:
                for end in pair:
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
            self._pairs.clear()

    def heal(self) -> None:
        """Lets new connections through."""
        with self._lock:
            self._cut = False

    def close(self) -> None:
        """For good."""
        self._closed = True
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join(5)
