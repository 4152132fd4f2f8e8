"""Whose socket is at the other end of a TCP connection, where that is on this machine too: the kernel tells anybody."""

import os
import socket
import struct

_SOCK_DIAG, _BY_FAMILY = 4, 20
"""Linux's NETLINK_SOCK_DIAG and SOCK_DIAG_BY_FAMILY."""
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ASKED = struct.Struct("=BBBBI")  # struct inet_diag_req_v2, up to the addresses
_PORTS = struct.Struct("!HH")
_ANY = struct.pack("=I2I", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # on any interface, with any cookie
_TOLD = struct.Struct("=4B48x5I")  # struct inet_diag_msg: the last two are uid and inode


class Peers:
    """Asks the kernel. Where it cannot be asked, nothing is known of anybody."""

    def __init__(self) -> None:
        self._number = 0
        self._kernel: socket.socket | None = None
        try:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
            self._kernel.setblocking(False)  # it answers before send returns
            self._kernel.connect((0, 0))
        except OSError:
            self.close()

    def uid_of(self, connection: socket.socket) -> int | None:
        """The uid of the process at the other end; None where that is elsewhere, gone, or not to be known."""
        if self._kernel is None:
            return None
        try:
            there, here = connection.getpeername(), connection.getsockname()
            self._number = (self._number + 1) & 0xFFFFFFFF
            addresses = b"".join(
                socket.inet_pton(connection.family, each[0]).ljust(16, b"\0") for each in (there, here)
            )
            body = _ASKED.pack(connection.family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
            body += _PORTS.pack(there[1], here[1]) + addresses + _ANY
            self._kernel.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, 1, self._number, 0) + body)
            while True:
                answer = self._kernel.recv(4096)
                _, kind, _, number, _ = _HEADER.unpack_from(answer)
                if number == self._number:  # not to a question before, whose answer did not come in time
                    break
            if kind != _BY_FAMILY:
                return None
            *_, uid, inode = _TOLD.unpack_from(answer, _HEADER.size)
        except (OSError, ValueError, struct.error):
            return None
        return int(uid) if inode else None  # without one nobody has the socket open, and the uid says nothing

    def close(self) -> None:
        """Asks no more."""
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None


def is_stranger(uid: int | None) -> bool:
    """Whether this is surely neither us nor root."""
    return uid is not None and uid not in (0, os.geteuid())
