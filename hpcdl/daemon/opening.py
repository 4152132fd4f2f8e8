"""The ledger as a daemon opens it once it has the lease: whole, or resumed from a backup or an accepted loss."""

from collections.abc import Callable
from pathlib import Path

from hpcdl.agent.folder import is_local, run_folder
from hpcdl.config import Config
from hpcdl.daemon.identity import LIMIT, node_name
from hpcdl.ledger import SqliteJournal
from hpcdl.ledger.losses import Resumed, open_resumed
from hpcdl.ledger.offline import NAME
from hpcdl.wire.private import read_private


def open_ledger(
    home: Path,
    config: Config,
    holds: Callable[[], bool],
    phase: Callable[[str], None],
    *,
    accept_loss: bool,
    first_job: int,
) -> Resumed:
    """`holds`: whether the lease is still ours; `phase` hears how far it is. Raises as `open_resumed`, and OSError."""

    def on_read(done: int, of: int) -> None:
        phase(f"reading the ledger: event {done:,} of {of:,}")

    return open_resumed(
        home,
        lambda: SqliteJournal(home / NAME, lease_check=holds, samples=config.samples, on_read=on_read),
        runs=_runs_elsewhere(home, config),
        accept_loss=accept_loss,
        first_job=first_job,
    )


def _runs_elsewhere(home: Path, config: Config) -> tuple[Path, ...]:
    """Where this machine's agent keeps its folder, where that is not in the home; () while there is no instance."""
    instance = home / "tls" / "instance"
    if is_local(home) or not instance.exists():
        return ()
    node = config.node_name or node_name(home, None, config.node)
    return (run_folder(home, node, read_private(instance, LIMIT).decode().strip()),)
