"""How often the daemon's garbage is collected: rarely, for a collection stops everybody who waits for an answer; but
once a minute in any case, for a connection that came to nothing leaves buffers of TLS in it."""

import gc

THRESHOLDS = 10_000, 20, 50
"""New objects until the youngest are looked at; and how often until all are, which takes 60 ms with 2,000 jobs. What
is no part of a cycle goes at once in any case, and next to nothing of ours is."""


def settle() -> None:
    """What is loaded by now stays, and no collection looks at it again."""
    gc.set_threshold(*THRESHOLDS)
    gc.collect()
    gc.freeze()
