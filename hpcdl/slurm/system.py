"""Slurm as hpcdl knows it before any of its commands is run: names, variables, signals, hints for users.

It loads fast, for the agent and every command of the CLI import it: what runs commands is imported by the methods.
"""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpcdl.batch.system import BatchError, BatchSystem

if TYPE_CHECKING:
    from hpcdl.batch.adapter import AdapterSettings, BatchAdapter, CommandRunner, SiteReport
    from hpcdl.batch.script import SubmitCommand

CONF = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where Slurm's commands look without SLURM_CONF. Installed without any of these they most often serve no cluster."""


class SlurmSystem(BatchSystem):
    """See `BatchSystem`."""

    name = "slurm"
    title = "Slurm"
    commands = ("sinfo", "squeue")
    idle_commands = ("sinfo",)
    job_variable = "SLURM_JOB_ID"
    queue_variable = "SLURM_JOB_PARTITION"
    cluster_variable = "SLURM_CLUSTER_NAME"
    job_variables = re.compile(r"SLURMD?_(?!(CONF|TIME_FORMAT)$).*|SRUN_DEBUG")
    output_variables = re.compile(
        r"(?:SQUEUE|SINFO|SCONTROL|SACCT|SCANCEL)_\w+|SLURM_(?:TIME_FORMAT|BITSTR_LEN)|SBATCH_(?:WAIT|ARRAY_INX)"
    )
    hidden_variables = re.compile(r"(?!SLURM_CONF$)(SLURM|SLURMD|SBATCH|SRUN|SALLOC)_?.*")
    gpu_lists = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
    gpu_counts = ("SLURM_GPUS_ON_NODE",)
    end_signals: ClassVar[Mapping[signal.Signals, str]] = {
        signal.SIGTERM: "cancelled, preempted, or the walltime ends",
        signal.SIGUSR1: "the usual `sbatch --signal`",
    }
    submit_name = "sbatch"
    job_script = "jobscripts/hpcdl.slurm"
    submit_line = "sbatch jobscripts/hpcdl.slurm"
    gpu_line = "#SBATCH --gres=gpu:N"
    account_options = '["--account=NAME"]'
    outlives_first_node = True

    def serves(self, environ: Mapping[str, str]) -> bool:
        """Whether there is a slurm.conf."""
        return bool(environ.get("SLURM_CONF")) or any(map(os.path.exists, CONF))

    def requeued(self, environ: Mapping[str, str]) -> bool:
        """See `BatchSystem`."""
        return environ.get("SLURM_RESTART_COUNT", "0") != "0"

    def script_variables(
        self, batch: Mapping[str, Any], environ: Mapping[str, str], nodes: Sequence[str], here: int
    ) -> dict[str, str]:
        """See `BatchSystem`."""
        from hpcdl.slurm.script_variables import script_variables

        return script_variables(batch, environ, nodes, here)

    def file_values(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """See `BatchSystem`."""
        from hpcdl.slurm.script_variables import file_values

        return file_values(environ)

    def adapter(self, here: "AdapterSettings") -> "BatchAdapter":
        """See `BatchSystem`."""
        from hpcdl.slurm.adapter import Slurm

        return Slurm(here.run, here.site.options, here.environ)

    def submit_command(self) -> "SubmitCommand":
        """See `BatchSystem`."""
        from hpcdl.slurm.sbatch import SBATCH

        return SBATCH

    def submit_next(self, run: "CommandRunner", batch_id: str, script: str, env: Sequence[str]) -> str:
        """See `BatchSystem`. What was said on sbatch's command line holds for the next one, too."""
        from hpcdl.slurm.submit import next_argv, submitted
        from hpcdl.slurm.text import complaint, is_away, pairs

        shown = run(["scontrol", "--oneliner", "show", "job", batch_id])
        not_submitted = "the next allocation was not submitted: scontrol"
        if shown.code != 0:
            raise BatchError(f"{not_submitted}: {complaint(shown.err, shown.out)}", away=is_away(shown.err))
        if pairs(shown.out).get("JobId") != batch_id:
            raise BatchError(f"{not_submitted} says nothing of batch job {batch_id}", again=True)
        done = run([*env, *next_argv(batch_id, shown.out)], stdin=script)
        if done.code != 0:
            said = complaint(done.err, done.out)
            raise BatchError(f"the next allocation was not taken: sbatch: {said}", away=is_away(done.err))
        return submitted(done.out)

    def requeue_without_first(self, run: "CommandRunner", batch_id: str) -> bool | None:
        """See `BatchSystem`. By `scontrol requeue`, which its user may, too."""
        from hpcdl.slurm.jobs import has_lost_first
        from hpcdl.slurm.text import checked

        lost = has_lost_first(batch_id, checked("scontrol", run(["scontrol", "--oneliner", "show", "job", batch_id])))
        if lost:
            checked("scontrol", run(["scontrol", "requeue", batch_id]))
        return lost

    def waiting_next(self, run: "CommandRunner", batch_id: str, environ: Mapping[str, str]) -> Sequence[str]:
        """See `BatchSystem`."""
        from hpcdl.batch.command import understood
        from hpcdl.slurm.jobs import dependents_argv, dependents_of
        from hpcdl.slurm.text import checked

        done = run(dependents_argv(str(os.getuid())))
        return understood("squeue", lambda: dependents_of(batch_id, checked("squeue", done)))

    def site_report(self, adapter: "BatchAdapter", run: "CommandRunner") -> "SiteReport":
        """See `BatchSystem`."""
        from hpcdl.slurm.report import report

        return report(adapter, run)


SYSTEM = SlurmSystem()
