"""What this LSF lacks, and what that costs us, a line each."""

from collections.abc import Collection

from hpcdl.lsf.jobs import CAPABLE, Form


def told_missing(
    *, commands: Collection[str], form: Form | None, bslots: bool, backfill: bool, gpus: bool
) -> tuple[str, ...]:
    """`commands`: those on PATH. `form`: the one in which bjobs answers, None where it said nothing yet. `bslots`,
    `backfill`, `gpus`: whether bslots answers, some queue backfills, and LSF tells of GPUs.
    """
    lines = []
    if form is Form.WIDE:
        lines.append(
            "bjobs -o, -UF and -l are refused: bjobs -w tells states and hosts, but no start, no end and no reason, "
            "so a requeued pilot looks like its first run"
        )
    elif form in (Form.UF, Form.LONG):
        lines.append(f"bjobs -o and -json are refused: states are read from bjobs {form}, a block for each job")
    elif form is Form.FEW:
        lines.append("bjobs -o knows few fields: why a job waits or ended is not reported")
    elif form is Form.FIELDS:
        lines.append("bjobs -json is refused: fields are asked for with -o, which costs nothing")
    if form is not None and form not in CAPABLE:
        lines.append("bsub -Jd is not used: a pilot is known again by its job name, which is its mark")
        lines.append(
            "bsub -wa and -wt are not used: the first word of the run limit is SIGUSR2, when it is reached; "
            "pilots leave by the walltime that they know"
        )
        lines.append("bsub -gpu and -rn are not used: pilots take whole nodes by slots, and may be requeued")
    if not bslots:
        lines.append("no bslots: backfill holes are the hosts that idle now, until an unknown time; keep pilots short")
    elif not backfill:
        lines.append("no queue has BACKFILL: bslots shows no window at all, and there are no backfill holes")
    if "bhist" not in commands:
        lines.append("no bhist: how a pilot ended that bjobs has forgotten stays unknown")
    if not {"blaunch", "jsrun"} & set(commands):
        lines.append("neither blaunch nor jsrun: an agent can only be started on an allocation's first node")
    if not gpus:
        lines.append("lshosts -gpu and bhosts -gpu tell of no GPUs: a backfill hole's are known once agents run there")
    return tuple(lines)
