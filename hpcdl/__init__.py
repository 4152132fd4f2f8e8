"""hpcdl shares the GPUs of an HPC allocation well among deep-learning jobs.

Nothing is imported here: the command line and the trainers start fast. The first use of a name loads it: of a training
script's (`hpcdl.steps`, from `hpcdl.trainer`), or of whoever submits jobs (`hpcdl.submit`, from `hpcdl.python`).
"""

__version__ = "0.1.0.dev0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpcdl.python import ApiError as ApiError
    from hpcdl.python import ClientError as ClientError
    from hpcdl.python import DaemonAway as DaemonAway
    from hpcdl.python import Executor as Executor
    from hpcdl.python import FunctionRaised as FunctionRaised
    from hpcdl.python import Job as Job
    from hpcdl.python import JobCancelled as JobCancelled
    from hpcdl.python import JobError as JobError
    from hpcdl.python import JobFailed as JobFailed
    from hpcdl.python import Options as Options
    from hpcdl.python import ResultError as ResultError
    from hpcdl.python import SubmitError as SubmitError
    from hpcdl.python import job as job
    from hpcdl.python import jobs as jobs
    from hpcdl.python import map as map
    from hpcdl.python import submit as submit
    from hpcdl.trainer import Checkpoint as Checkpoint
    from hpcdl.trainer import Session as Session
    from hpcdl.trainer import attach as attach
    from hpcdl.trainer import checkpoint as checkpoint
    from hpcdl.trainer import done as done
    from hpcdl.trainer import exit_suspended as exit_suspended
    from hpcdl.trainer import progress as progress
    from hpcdl.trainer import ready as ready
    from hpcdl.trainer import resume as resume
    from hpcdl.trainer import should_suspend as should_suspend
    from hpcdl.trainer import steps as steps
else:
    _OF_TRAINERS = (
        *("Checkpoint", "Session", "attach", "checkpoint", "done", "exit_suspended", "progress", "ready", "resume"),
        *("should_suspend", "steps"),
    )
    _OF_SUBMITTERS = (
        *("ApiError", "ClientError", "DaemonAway", "Executor", "FunctionRaised", "Job", "JobCancelled", "JobError"),
        *("JobFailed", "Options", "ResultError", "SubmitError", "job", "jobs", "map", "submit"),
    )

    def __getattr__(name):
        if name not in _OF_TRAINERS and name not in _OF_SUBMITTERS:
            raise AttributeError(f"module 'hpcdl' has no attribute {name!r}")
        import importlib

        try:
            module = importlib.import_module("hpcdl.trainer" if name in _OF_TRAINERS else "hpcdl.python")
        except (ImportError, SyntaxError) as error:
            raise ImportError(
                f"hpcdl.{name} needs Python 3.11 and what hpcdl is installed with (pip install hpcdl): {error}"
            ) from error
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__():
        return sorted([*globals(), *_OF_TRAINERS, *_OF_SUBMITTERS])
