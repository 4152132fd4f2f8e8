"""Who may look: one-time links that become cookies, and how many of these there are at most.

Only hashes are kept, in memory alone, so all sessions end with the process.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256

MOST = 16
"""WebSessions at a time; one more ends the one that was opened first."""

LIFE_S = 12 * 3600.0
LINK_S = 3600.0
"""So long a link is good for its one use."""


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()


class WebSessions:
    """The sessions of one server, and the one link that opens the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds that only grow."""
        self._clock = clock
        self._link = b""
        self._link_ends = 0.0
        self._ends: dict[bytes, float] = {}  # by the hash of a cookie, in the order in which they were opened

    def new_link(self) -> str:
        """The secret of a link; that of the one before it is dead."""
        secret = secrets.token_urlsafe(32)
        self._link, self._link_ends = _hash(secret), self._clock() + LINK_S
        return secret

    def open(self, secret: str) -> str | None:
        """The cookie for the secret of a link, which is dead from now on; None where it opens nothing."""
        if not self._link or not hmac.compare_digest(_hash(secret), self._link) or self._clock() >= self._link_ends:
            return None
        self._link = b""
        cookie = secrets.token_urlsafe(32)
        while len(self._ends) >= MOST:
            del self._ends[next(iter(self._ends))]
        self._ends[_hash(cookie)] = self._clock() + LIFE_S
        return cookie

    def known(self, cookie: str) -> bool:
        """Whether the cookie is that of a session."""
        return self._clock() < self._ends.get(_hash(cookie), 0.0)
