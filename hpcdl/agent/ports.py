"""A port that is kept until whoever it is for listens on it."""

import errno
import ipaddress
import random
import socket
from contextlib import suppress
from pathlib import Path

FROM, TO = 10_240, 32_768
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
ATTEMPTS = 200


class Port:
    """A port of this address, bound as long as this is not released, so that nobody else gets it.

    It lies below those that the kernel gives to whoever asks for any: in the moments between the release and the use
    only somebody who wants this very number could take it.
    """

    def __init__(self, host: str) -> None:
        """Raises OSError where none is free, or the address is not this machine's."""
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        top = TO
        with suppress(OSError, ValueError, IndexError):
            top = min(TO, int(RANGE.read_text().split()[0]))
        for _ in range(ATTEMPTS):
            # Above what the kernel gives out where there is nothing below it: then the kernel chooses.
            number = random.randrange(FROM, top) if top > FROM else 0
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._socket.bind((host, number))
                break
            except OSError as error:
                self._socket.close()
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
        else:
            raise OSError(errno.EADDRINUSE, f"no free port on {host} in {ATTEMPTS} attempts")
        port = self._socket.getsockname()[1]
        self.address = f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"

    def release(self) -> None:
        """It is to be used now."""
        self._socket.close()
