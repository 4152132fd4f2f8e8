"""`hpcdl profile run --when-idle`: a light profiling that the daemon does by itself, on GPUs that idle.

The runs are jobs like any other but for `JobSpec.light_steps`; what they show is learnt as of these.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcdl.cli.output import Output, say
from hpcdl.cli.submit.job import JobRequest
from hpcdl.client import Client
from hpcdl.core.model.job import PRIORITY
from hpcdl.core.model.units import count, ranges

if TYPE_CHECKING:
    from hpcdl.core.model.latency import Setting


def leave_to_daemon(
    client: Client, requests: "Sequence[tuple[Setting, JobRequest]]", steps: int, output: Output
) -> None:
    """Submits those of the runs of which nothing was seen yet, and says which. Each ends once `steps` were measured."""
    rows = [row for row in client.get("/v1/profiles")["profiles"] if row["learnt"]]
    seen = {(row["name"], each["nodes"], each["gpus"]) for row in rows for each in row["points"]}
    entries = [
        replace(request, spec=replace(request.spec, light_steps=steps, priority=-PRIORITY)).entry()
        for setting, request in requests
        if (request.spec.learns_as, setting.nodes, setting.gpus) not in seen
    ]
    jobs: list[int] = []
    if entries:
        body = {"request_id": os.urandom(16).hex(), "jobs": entries}
        jobs = [int(row["id"]) for row in client.request("POST", "/v1/jobs", body)["jobs"]]
    known = len(requests) - len(entries)
    if output.print_data({"jobs": jobs, "known": known}, jobs):
        return
    if known:
        are = "is" if known == 1 else "are"
        say(f"{known} of {count(len(requests), 'run')} {are} known already: hpcdl profile ls")
    if jobs:
        print(
            f"{count(len(jobs), 'run')} left to the daemon, {'job' if len(jobs) == 1 else 'jobs'} {ranges(jobs)}: "
            "on GPUs that idle; hpcdl profile ls shows what is learnt of them"
        )
