"""LSF as hpcdl knows it before any of its commands is run: names, variables, signals, hints for users.

It loads fast, for the agent and every command of the CLI import it: what runs commands is imported by the methods.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hpcdl.batch.system import BatchError, BatchSystem

if TYPE_CHECKING:
    from hpcdl.batch.adapter import AdapterSettings, BatchAdapter, CommandRunner, SiteReport
    from hpcdl.batch.script import SubmitCommand

_BEGIN, _END = "# LSBATCH: User input\n", "# LSBATCH: End user input\n"


class LsfSystem(BatchSystem):
    """See `BatchSystem`."""

    name = "lsf"
    title = "LSF"
    commands = ("bjobs", "bsub", "lsid")
    idle_commands = ("bhosts", "bslots")
    job_variable = "LSB_JOBID"
    queue_variable = "LSB_QUEUE"
    job_variables = re.compile(
        r"LSB_(DJOB_.*|MCPU_HOSTS|HOSTS|JOB.*|BATCH_JID|QUEUE|AFFINITY_HOSTFILE|EXEC_.*|OUTPUTFILE|RESTART|TRAPSIGS)"
        r"|LS_(JOBPID|EXEC_T|SUBCWD)|CSM_ALLOCATION_ID|JSM_.*"
    )
    output_variables = re.compile(
        r"LSB_(?:BJOBS|BHIST|BHOSTS|BQUEUES)_\w+|LSB_(?:DISPLAY_YEAR|SHORT_HOSTLIST)"
        r"|BSUB_(?:QUIET2?|CHK_RESREQ|STDERR|BLOCK)"
    )
    hidden_variables = re.compile(r"(?!LSF_(BINDIR|LIBDIR|SERVERDIR|ENVDIR)$)(LSB|LSF|LS_)_?.*")
    end_signals: ClassVar[Mapping[signal.Signals, str]] = {
        signal.SIGINT: "bkill, preemption or requeue; the next one follows after JOB_TERMINATE_INTERVAL (10 s)",
        signal.SIGTERM: "the second of INT, TERM, KILL",
        signal.SIGUSR2: "the run limit is reached; what is left is killed 10 minutes later, elsewhere sooner",
        signal.SIGTSTP: "bstop, or preemption by suspending: SIGSTOP follows, and GPU memory stays taken",
        signal.SIGURG: "the warning before the end that our own submissions ask for (bsub -wa URG -wt)",
        signal.SIGXCPU: "the CPU limit is reached",
    }
    submit_name = "bsub"
    job_script = "jobscripts/hpcdl.lsf"
    submit_line = "bsub < jobscripts/hpcdl.lsf"
    gpu_line = "#BSUB -gpu num=N"
    account_options = '["-P", "PROJECT"]'
    hosts_variables = ("LSB_DJOB_HOSTFILE", "LSB_DJOB_RANKFILE")
    site_keys: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "submit_by": ("auto", "stdin", "file"),
        "nodes_by": ("auto", "slots", "nodes"),
        "launcher": ("auto", "blaunch", "jsrun", "lsrun", "ssh"),
        "select": (),
    }

    def requeued(self, environ: Mapping[str, str]) -> bool:
        """See `BatchSystem`."""
        return environ.get("LSB_RESTART") == "Y"

    def scripts(self, environ: Mapping[str, str]) -> Sequence[str]:
        """LSF's own file has the script between two marks; one that begins with #! lies beside it as well."""
        spooled = environ.get("LSB_JOBFILENAME", "")
        return (f"{spooled}.shell", spooled) if spooled else ()

    def script_in(self, text: str) -> str:
        """See `BatchSystem`."""
        _, _, inside = text.partition(_BEGIN)
        return inside.partition(_END)[0] if inside else text

    def script_variables(
        self, batch: Mapping[str, Any], environ: Mapping[str, str], nodes: Sequence[str], here: int
    ) -> dict[str, str]:
        """See `BatchSystem`."""
        from hpcdl.lsf.script_variables import script_variables

        return script_variables(batch, environ, nodes)

    def script_hosts(self, batch: Mapping[str, Any], nodes: Sequence[str]) -> Sequence[str]:
        """See `BatchSystem`."""
        from hpcdl.lsf.script_variables import hosts_of

        return [host for host, slots in hosts_of(batch, nodes) for _ in range(slots)]

    def file_values(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """See `BatchSystem`."""
        from hpcdl.lsf.script_variables import file_values

        return file_values(environ)

    def adapter(self, here: "AdapterSettings") -> "BatchAdapter":
        """See `BatchSystem`."""
        from hpcdl.lsf.adapter import Lsf, LsfSettings

        site, own = here.site, {key: here.keys[key] for key in self.site_keys if key in here.keys}
        ways = LsfSettings(queues=site.queues, without_preemption=site.pilots_without_preemption, **own)
        return Lsf(here.run, now=here.now, ways=ways, environ=here.environ)

    def submit_command(self) -> "SubmitCommand":
        """See `BatchSystem`."""
        from hpcdl.lsf.bsub import BSUB

        return BSUB

    def submit_next(self, run: "CommandRunner", batch_id: str, script: str, env: Sequence[str]) -> str:
        """See `BatchSystem`. bsub reads the script, whose #BSUB lines say the rest."""
        from hpcdl.lsf.text import answered, down, parse_bsub, transient, words

        done = run([*env, "bsub", "-w", f"ended({batch_id})"], stdin=script)
        found = parse_bsub(done)
        if found is None:
            silent = not answered(done) or transient(done) or down(done)
            raise BatchError(f"the next allocation was not taken: bsub: {words(done)}", away=silent)
        return found

    def waiting_next(self, run: "CommandRunner", batch_id: str, environ: Mapping[str, str]) -> Sequence[str]:
        """See `BatchSystem`. By bjobs -l, which every LSF knows."""
        from hpcdl.lsf.jobs import DEPENDENTS_ARGV, dependents_of

        return dependents_of(batch_id, run(DEPENDENTS_ARGV).out)

    def site_report(self, adapter: "BatchAdapter", run: "CommandRunner") -> "SiteReport":
        """See `BatchSystem`."""
        from hpcdl.lsf.report import report

        return report(adapter, run)


SYSTEM = LsfSystem()
