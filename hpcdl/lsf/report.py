"""LSF's limits for `hpcdl doctor --site`: its queues, and the slots that each user may have there.

Asked only there; what pilots may use is then in the site's file (`hpcdl.batch.site`).
"""

import re
import shutil
from collections.abc import Sequence

from hpcdl.batch.adapter import BatchAdapter, CommandRunner, SiteQueue, SiteReport
from hpcdl.batch.system import BatchError
from hpcdl.lsf import text
from hpcdl.lsf.cluster import bqueues_argv, parse_bqueues_long

_SLOTS = re.compile(
    r"^QUEUE: *(\S+)[\s\S]*?^ *PRIO +NICE +STATUS +MAX +JL/U[^\n]*\n *\S+ +\S+ +\S+ +\S+ +(\d+)", re.MULTILINE
)


def report(adapter: BatchAdapter, run: CommandRunner) -> SiteReport:
    """See `BatchSystem.site_report`."""

    def ask(argv: Sequence[str]) -> str:
        done = run(argv)
        if done.code != 0:
            raise BatchError(f"{argv[0]}: {text.words(done)}", away=text.down(done) or text.transient(done))
        return done.out

    version, cluster = text.parse_lsid(ask(["lsid"])) if shutil.which("lsid") else ("", "")
    printed = ask(bqueues_argv())
    not_preempted = adapter.capabilities().not_preempted
    found = tuple(
        SiteQueue(
            queue.name,
            queue.open,
            queue.run_limit_s,
            told=(queue.kind,) if queue.kind else (),
            not_preempted=not_preempted.get(queue.name, "it is not known"),
        )
        for queue in parse_bqueues_long(printed)
    )
    notes = tuple(f"{name}: at most {slots} slots of yours at once" for name, slots in _SLOTS.findall(printed))
    return SiteReport("lsf", version, cluster, found, None, notes)
