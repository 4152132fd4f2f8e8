"""Commands of batch systems that scripts call about their own job: its id is hpcdl's, and may be somebody's there.

`scontrol show hostnames` is answered here. Of all others, what names the own id is refused in one line, or done where
hpcdl can; what does not goes to the next command of that name in PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcdl.agent.steps.layout import BadStep
from hpcdl.agent.steps.script import REQUEUE
from hpcdl.agent.steps.step import reachable, run_folder
from hpcdl.core.model.units import expand_nodes, fold_nodes

INSTEAD = {
    "scancel": "hpcdl cancel {}",
    "bkill": "hpcdl cancel {}",
    "squeue": "hpcdl show {}",
    "sacct": "hpcdl show {}",
    "sstat": "hpcdl show {}",
    "bjobs": "hpcdl show {}",
    "scontrol": "hpcdl show {}",
}


def main(name: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """The exit code; or this process becomes the real command. Raises BadStep."""
    job = environ.get("SLURM_JOB_ID") or environ.get("LSB_JOBID") or ""
    plain = [word for word in words if not word.startswith("-")]
    if name == "scontrol" and plain[:1] == ["show"] and len(plain) > 1 and plain[1].lower().startswith("host"):
        sys.stdout.write(_hosts(plain[1].lower(), plain[2:], environ))
        return 0
    array, task = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    ids = "|".join(re.escape(each) for each in (job, array) if each)
    own = ids != "" and any(re.fullmatch(rf"(?:.*[=,])?(?:{ids})(?:[_.\[,].*)?", word) for word in words)
    if name == "scontrol" and plain[:1] == ["requeue"] and plain[1:] in ([job], [f"{array}_{task}"]):
        (run_folder(environ) / REQUEUE).touch()
        return 0
    if own:
        raise BadStep(f"job {job} is hpcdl's, which the batch system does not know: {INSTEAD[name].format(job)}")
    return _become(name, words, environ)


def _hosts(what: str, words: Sequence[str], environ: Mapping[str, str]) -> str:
    """What `scontrol show hostnames [LIST]` prints, or `hostlist NAMES`."""
    if what.startswith("hostl"):
        return fold_nodes(expand_nodes(",".join(" ".join(words).split()))) + "\n"
    listed = expand_nodes(words[0] if words else environ.get("SLURM_JOB_NODELIST", ""))
    return "".join(f"{reachable(each, environ)}\n" for each in listed)


def _become(name: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Become the command of that name that is none of hpcdl's; a shell's exit code where there is none."""
    folders = [
        folder
        for folder in environ.get("PATH", os.defpath).split(os.pathsep)
        if not (Path(folder or ".") / "hpcdl-stubs").exists()
    ]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is not None:
        os.execv(found, [found, *words])
    sys.stderr.write(f"{name}: command not found\n")
    return 127
