"""TCP ports for processes that can only be told a number."""

from hpcdl.agent.rendezvous import Port


def free_port() -> str:
    """A port of 127.0.0.1 that nobody has, and that the kernel gives to nobody who asks for any."""
    port = Port("127.0.0.1")
    port.release()
    return port.address.rpartition(":")[2]
