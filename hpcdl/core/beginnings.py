"""Checkpoint folders that are begun anew: `hpcdl retry --from-start` removes nothing, it goes on in a folder within."""

from hpcdl.core.model import Job, World

NAME = "from-start-{}"
"""The folder within a checkpoint folder that its n-th new beginning has."""


def beginning_of(world: World, job: Job) -> int:
    """How many times the job's checkpoint folder was begun anew, for this job or another one that uses it."""
    folder = job.spec.checkpoint_dir
    if folder is None:
        return job.beginning
    there = (each.beginning for each in world.jobs.values() if each.spec.checkpoint_dir == folder)
    return max(world.folders.get(folder, (0, 0))[1], *there, job.beginning)


def folder_within(folder: str, beginning: int) -> str:
    """Where checkpoints are, of a checkpoint folder that was begun anew so many times."""
    return f"{folder}/{NAME.format(beginning)}" if beginning else folder
