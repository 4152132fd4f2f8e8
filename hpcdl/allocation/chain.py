"""The next allocation of a chain: the same batch script, submitted to run once this batch job is over."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcdl.batch import Allocation, BatchError, Completed, Run
from hpcdl.lsf.text import parse_bsub, words
from hpcdl.slurm.submission import submitted
from hpcdl.slurm.text import complaint, pairs

LEFT = "HPCDL_CHAIN"
"""How many more allocations the next one may submit; for `hpcdl allocation`, as --chain."""

_LOST = re.compile(r"(SLURMD?|SRUN|LSB|LSF|LS|PMIX?|OMPI|PRTE)_.*|(CUDA|ROCR)_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL")
_KEPT = re.compile(r"SLURM_(CONF|TIME_FORMAT)|LSF_(ENVDIR|BINDIR|LIBDIR|SERVERDIR)|LSB_CONFDIR")

_BEGIN, _END = "# LSBATCH: User input\n", "# LSBATCH: End user input\n"


@dataclass(frozen=True, slots=True)
class Next:
    """What submits the next allocation: a command, what it reads, and variables that it must not hand on."""

    argv: tuple[str, ...]
    stdin: str


def variables_lost(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those of this batch job, which the next one gets anew."""
    return tuple(sorted(name for name in environ if _LOST.fullmatch(name) and not _KEPT.fullmatch(name)))


def slurm_next(id_: str, script: str, shown: str, left: int, environ: Mapping[str, str]) -> Next:
    """`shown`: what `scontrol --oneliner show job` says of this one, whose command line counts for the next as well."""
    fields = pairs(shown)
    argv = ["env", *(part for name in variables_lost(environ) for part in ("-u", name)), f"{LEFT}={left}"]
    argv += ["sbatch", "--parsable", f"--dependency=afterany:{id_}"]
    for name, option in (
        ("JobName", "--job-name"),
        ("Partition", "--partition"),
        ("Account", "--account"),
        ("QOS", "--qos"),
        ("TimeLimit", "--time"),
        ("WorkDir", "--chdir"),
    ):
        value = fields.get(name, "")
        if value and not value.startswith("(null)"):
            argv.append(f"{option}={value}")
    nodes = fields.get("NumNodes", "").split("-")[0]
    if nodes.isdigit():
        argv.append(f"--nodes={nodes}")
    return Next(tuple(argv), script)


def lsf_next(id_: str, script: str, left: int, environ: Mapping[str, str]) -> Next:
    """bsub reads the script, whose #BSUB lines say the rest."""
    argv = ["env", *(part for name in variables_lost(environ) for part in ("-u", name)), f"{LEFT}={left}"]
    return Next((*argv, "bsub", "-w", f"ended({id_})"), script)


def script_of(path: Path | None, environ: Mapping[str, str]) -> str:
    """The batch script. `path`: where it is said to be; LSF tells by itself, too. Raises BatchError.

    LSF's own file has the script between two marks; one that begins with #! lies beside it as well. A `path` that is no
    script is a shell that reads one.
    """
    spooled = environ.get("LSB_JOBFILENAME", "")
    places = [path, *([Path(f"{spooled}.shell"), Path(spooled)] if spooled else [])]
    why = 'add --script "$0" to the line in it that starts hpcdl'
    for place in places:
        try:
            text = "" if place is None else place.read_text()
        except (OSError, ValueError) as error:
            why = f"{place} cannot be read: {error}"
            continue
        if text:
            _, _, inside = text.partition(_BEGIN)
            return inside.partition(_END)[0] if inside else text
    raise BatchError(f"--chain needs the batch script: {why}")


def submit_next(run: Run, allocation: Allocation, script: str, left: int, environ: Mapping[str, str]) -> str:
    """Submits it; its batch id. `left`: how many it may submit in turn. Raises BatchError."""
    if allocation.kind == "lsf":
        done = _run(run, lsf_next(allocation.id, script, left, environ))
        found = parse_bsub(done)
        if found is None:
            raise BatchError(f"the next allocation was not taken: bsub: {words(done)}")
        return found
    shown = run(["scontrol", "--oneliner", "show", "job", allocation.id])
    if shown.code != 0:  # without it the next one would lose what was said on sbatch's command line
        raise BatchError(f"the next allocation was not submitted: scontrol: {complaint(shown.err, shown.out)}")
    if pairs(shown.out).get("JobId") != allocation.id:
        raise BatchError(f"the next allocation was not submitted: scontrol says nothing of batch job {allocation.id}")
    done = _run(run, slurm_next(allocation.id, script, shown.out, left, environ))
    if done.code != 0:
        raise BatchError(f"the next allocation was not taken: sbatch: {complaint(done.err, done.out)}")
    return submitted(done.out)


def _run(run: Run, what: Next) -> Completed:
    return run(what.argv, stdin=what.stdin)


def of_a_chain(environ: Mapping[str, str], given: int | None) -> int:
    """How many more allocations may follow: as an earlier one of the chain says, else as `given`.

    None where this batch job was requeued: its first run has submitted the next one.
    """
    if environ.get("SLURM_RESTART_COUNT", "0") != "0" or environ.get("LSB_RESTART") == "Y":
        return 0
    text = environ.get(LEFT, "")
    if text.isascii() and text.isdigit():
        return int(text)
    return given or 0
