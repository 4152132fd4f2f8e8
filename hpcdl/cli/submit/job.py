"""From the options of one job to what the API takes for it: a spec, an array, whether it is held."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdl.cli.arrays import array_of, checked, plain, with_sweeps
from hpcdl.cli.jobparts import default_name, environment, runs_gate, user_name
from hpcdl.cli.submitchecks import doubts, script_text, unwritable
from hpcdl.core.arrays import Array, literal
from hpcdl.core.codec import to_json
from hpcdl.core.jobspec import JobSpec, check_counts
from hpcdl.core.launchers import check_launcher

if TYPE_CHECKING:  # most submits have no batch script
    from hpcdl.cli.batchlines import BatchOptions, ExportedVariables

_OF_MEMBERS = ("array", "array_index", "array_most", "sweep")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One job, or an array of them, that is to be submitted."""

    spec: JobSpec
    array: Array | None = None
    held: bool = False

    @property
    def size(self) -> int:
        """How many jobs."""
        return 1 if self.array is None else self.array.size

    def entry(self) -> dict[str, Any]:
        """As `POST /v1/jobs` takes it."""
        body: dict[str, Any] = {key: value for key, value in to_json(self.spec).items() if key not in _OF_MEMBERS}
        if self.array is not None:
            body["array"] = plain(self.array)
        if self.held:
            body["held"] = True
        return body

    def doubts(self) -> list[str]:
        """What can be seen here of what may go wrong."""
        return list(doubts(self.spec, array=self.array is not None))


def wanted(given: Mapping[str, Any], command: Sequence[str], here: Path, asked: "BatchOptions | None" = None) -> Wanted:
    """The job that these options of submit (by the names of its parameters) and this command say.

    `asked`: what its batch script asks for, as far as the options leave that to it; then the command is the script's,
    with placeholders where it is an array. Raises ValueError and click.UsageError.
    """
    low, high, counts = given["gpus"] if given["gpus"][0] else (1, None if given["profile"] else 1, ())
    indices, most = given["array"], given["max_parallel"]
    name, exports, after, cwd, nodes = given["name"], None, given["after"], given["cwd"], given["nodes"]
    if asked is not None:
        name = literal(asked.name) if name is None and asked.name else name
        exports, after, cwd = asked.exports, asked.after or after, cwd or asked.cwd
        if asked.gpus:
            low, high, counts = asked.gpus, asked.gpus, ()
        nodes = (asked.nodes, asked.nodes) if asked.nodes else nodes
        if asked.array is not None and not indices:
            from hpcdl.core.arrays import indices_of

            indices, most = indices_of(asked.array.indices), most or asked.array.most or None
    array = array_of(indices, given["sweep"], most)
    command = tuple(command) if array is None else with_sweeps(command, given["sweep"])
    folder = Path(cwd or ".")
    stall_s, stall_restart = given["stall"]
    checkpoints = given["checkpoint_dir"]
    spec = JobSpec(
        command=command,
        name=default_name(command) if name is None else name,
        user=user_name(),
        cwd=str(folder if folder.is_absolute() else here / folder),
        gpus_min=low,
        gpus_max=high,
        gpus_counts=counts,
        nodes=nodes[0],
        nodes_max=nodes[1] if nodes[1] > nodes[0] else None,
        profile=given["profile"],
        steps=given["steps"],
        after=after,
        env=tuple(_variables(given["env"], exports).items()),
        retries=given["retries"],
        checkpoint_dir=str(Path(checkpoints).absolute()) if checkpoints else None,
        grace_s=given["grace"],
        signal=given["signal"],
        progress_regex=given["progress_regex"],
        progress=given["progress"],
        resumes=given["resumes"],
        gate=runs_gate(command),
        rescale=given["rescale"] or _means(command, nodes),
        weight=given["weight"],
        priority=given["priority"],
        model=given["model"],
        deadline=given["deadline"][0],
        ect=given["deadline"][1],
        accuracy_target=given["accuracy"],
        notify=given["notify"],
        stall_s=stall_s,
        stall_restart=stall_restart,
        continue_from=given["continue_from"],
    )
    check_counts(spec)
    check_launcher(spec, script_text(spec.command, spec.cwd))
    checked(spec, array)
    if spec.checkpoint_dir is not None and (why := unwritable(spec.checkpoint_dir)):
        raise click.ClickException(why)
    return Wanted(spec, array, given["hold"])


def with_after(found: Wanted, after: tuple[int, ...]) -> Wanted:
    """The same, waiting for other jobs."""
    return replace(found, spec=replace(found.spec, after=after))


def here() -> Path:
    """The folder that we are in. Raises click.UsageError where it is gone."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise click.UsageError("this folder no longer exists: cd to another one, or give --cwd") from None


def _variables(given: Sequence[str], exports: "ExportedVariables | None") -> dict[str, str]:
    if exports is None:
        return environment(given, os.environ)
    known = [each for each in exports.named if "=" in each or each in os.environ]  # as batch systems do
    return environment((*known, *given), os.environ, every=exports.every, left=exports.left)


def _means(command: Sequence[str], nodes: tuple[int, int]) -> str:
    """How a job goes to other nodes where nobody says: torchrun starts and restarts the ranks of an elastic one."""
    return "torchrun" if nodes[1] > nodes[0] and not runs_gate(command) else "restart"
