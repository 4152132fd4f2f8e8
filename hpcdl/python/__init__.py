"""hpcdl from Python: `hpcdl.submit(train, lr=0.1, gpus=1)`, the jobs that come of it, and what they return.

`import hpcdl` loads none of this; the first use of a name here does. It talks with the daemon as the command line does
(hpcdl/client.py), and a job's options are those of `hpcdl submit` (hpcdl/cli/submit).
"""

from hpcdl.client import ApiError, ClientError, DaemonAway
from hpcdl.python.call import SubmitError
from hpcdl.python.executor import Executor
from hpcdl.python.handle import FunctionRaised, Job, JobCancelled, JobError, JobFailed, ResultError
from hpcdl.python.options import Options
from hpcdl.python.submission import job, jobs, map, submit

__all__ = [
    "ApiError",
    "ClientError",
    "DaemonAway",
    "Executor",
    "FunctionRaised",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "Options",
    "ResultError",
    "SubmitError",
    "job",
    "jobs",
    "map",
    "submit",
]
