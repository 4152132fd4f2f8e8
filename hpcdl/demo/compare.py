"""Two runs of one job set side by side, and beside what the paper prints: text, HTML pages and summary.json.

Each run is also simulated with the costs measured in it, and compared decision by decision.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcdl.core.model.profile import Profile
from hpcdl.demo.episode import Episode, JobSet
from hpcdl.policies import all_policies
from hpcdl.report import HtmlTable, ReportedRun, render
from hpcdl.report.page import gpus_text, percent
from hpcdl.sim import SimJob, cluster
from hpcdl.sim.validation import Comparison, compare, measured_pace, with_measured_costs

SCHEMA = 1
EMULATED = (
    "Emulated is only the speed of the GPUs: steps and start-ups are paced by profiles that are a fit to what the "
    "paper prints, not measurements."
)
REAL = (
    "Training, signals, processes and checkpoints are real. A checkpoint of these small networks is quick to write, so "
    "suspending costs less here than in the paper; what is lost is mostly the start-up."
)

ASSUMED = (
    "Memory is the share of the GPUs' memory in use, by what training such models is assumed to take "
    "(conf/jobsets/marble.yaml): the paper prints that of no job."
)


def reduction(marble: Episode, exclusive: Episode) -> float:
    """The reduction of the makespan: 1 - MARBLE's / the baseline's."""
    return 1 - marble.measures.makespan_s / exclusive.measures.makespan_s


def summary(marble: Episode, exclusive: Episode) -> dict[str, Any]:
    """summary.json: times in emulated seconds from the first submit, `wall_s` in seconds of this machine's clock."""
    return {
        "schema": SCHEMA,
        "scale": marble.factor,
        "runs": [_summary_of(marble), _summary_of(exclusive)],
        "reduction": round(reduction(marble, exclusive), 4),
    }


def _summary_of(run: Episode) -> dict[str, Any]:
    def emulated(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * run.factor, 3)

    measures = run.measures
    return {
        "policy": run.policy,
        "makespan_s": emulated(measures.makespan_s),
        "wall_s": round(measures.makespan_s, 3),
        "utilisation": None if measures.utilisation is None else round(measures.utilisation, 4),
        "memory_utilisation": None if run.memory.run is None else round(run.memory.run, 4),
        "suspends": measures.suspends,
        "jobs": [
            {
                "id": job.id,
                "name": job.name,
                "state": job.state.value if job.state is not None else None,
                "start_s": emulated(job.start_s),
                "end_s": emulated(job.end_s),
                "jct_s": emulated(job.jct_s),
                "gpus": [[emulated(at), number] for at, number in job.gpus],
                "suspends": job.suspends,
                "lost_s": emulated(job.lost_s),
                "memory_utilisation": None if (share := run.memory.jobs.get(job.id)) is None else round(share, 4),
                "verified": run.verified.get(job.id, False),
            }
            for job in measures.jobs
        ],
    }


def simulate_again(jobset: JobSet, run: Episode, profiles: Mapping[str, Profile]) -> Comparison:
    """The same job set in the simulator, as fast as it trained here, with the costs of starting and saving it had."""
    jobs = {}
    listed = list(zip(run.history.jobs, [entry.steps for entry in jobset.jobs], strict=True))
    for story, entry in zip(run.history.jobs, jobset.jobs, strict=True):
        paced = paced_by(profiles[entry.model.lower()], run.factor)
        alike = [each for each in listed if each[0].profile == story.profile]
        pace = measured_pace(paced, alike)
        slowed = replace(paced, points=tuple((nodes, gpus, rate * pace) for nodes, gpus, rate in paced.points))
        profile = with_measured_costs(slowed, [each for each, _ in alike])
        jobs[story.id] = SimJob(0.0, entry.name, profile, entry.steps, gpus_max=jobset.gpus)
    return compare(run.history, jobs, cluster(1, jobset.gpus), run.policy, all_policies())


def paced_by(profile: Profile, factor: float) -> Profile:
    """The profile of a trainer that is `factor` times as fast."""
    points = tuple((nodes, gpus, rate * factor) for nodes, gpus, rate in profile.points)
    return replace(
        profile,
        points=points,
        startup_s=profile.startup_s / factor,
        save_s=profile.save_s / factor,
        resume_s=profile.resume_s / factor,
    )


def truth_text(run: Episode, found: Comparison) -> str:
    """What the comparison with the simulation came to, one line for good news and one for each difference else."""
    head = (
        f"{run.policy} simulated with the pace, start-ups and saves measured here: "
        f"{found.simulated_s * run.factor:.0f} emulated s, "
        f"{100 * abs(found.error):.1f} % off the real {found.real_s * run.factor:.0f}"
    )
    if not found.differences:
        return f"{head}; all {len(found.real)} starts, suspends, resumes and ends in the same order."
    return "\n".join([f"{head}. DIFFERENT:", *(f"  {line}" for line in found.differences)])


def jobs_table(runs: Sequence[Episode]) -> HtmlTable:
    """Every job under every policy; times in emulated seconds."""
    rows = []
    for run in runs:
        for job in run.measures.jobs:
            times = [job.start_s, job.end_s, job.jct_s]
            texts = ["–" if each is None else f"{each * run.factor:.0f}" for each in times]
            verified = "bit-identical" if run.verified.get(job.id) else "NO"
            state = job.state.value if job.state is not None else "–"
            lost = f"{job.lost_s * run.factor:.0f}"
            memory = _percent(run.memory.jobs.get(job.id))
            rows.append(
                (run.policy, job.name, state, *texts, gpus_text(job), str(job.suspends), lost, memory, verified)
            )
    header = ("Policy", "Job", "State", "Start, s", "End, s", "JCT, s", "GPUs", "Suspends", "Suspended, s", "Memory")
    return HtmlTable("Per job", (*header, "Weights"), tuple(rows), frozenset({3, 4, 5, 7, 8, 9}))


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)


def runs_table(jobset: JobSet, marble: Episode, exclusive: Episode) -> HtmlTable:
    """Makespan, utilisation of the GPUs and their memory, and reduction, beside the paper's."""
    rows = []
    for run, printed in ((exclusive, f"LSF: {jobset.lsf_s:g}"), (marble, f"MARBLE: {jobset.marble_s:g}")):
        used = _percent(run.measures.utilisation), _percent(run.memory.run)
        makespan = f"{run.measures.makespan_s * run.factor:.0f}"
        rows.append((run.policy, makespan, printed, *used, "", ""))
    rows[1] = (*rows[1][:5], percent(reduction(marble, exclusive)), percent(jobset.reduction))
    header = ("Policy", "Makespan, s", "In the paper, s", "GPU utilisation", "GPU memory", "Reduction", "In the paper")
    return HtmlTable("Per run", header, tuple(rows), frozenset({1, 2, 3, 4, 5, 6}))


def notes(scale: float) -> list[str]:
    """For the reader: what is emulated, what is real, and what is assumed."""
    times = f"Times are emulated seconds: one second of this machine's clock counts {scale:g}."
    return [f"{times} {EMULATED}", REAL, ASSUMED]


def text_of(table: HtmlTable) -> str:
    """A table for the terminal."""
    lines = [table.header, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.header))]
    texts = []
    for line in lines:
        cells = [
            cell.rjust(width) if column in table.right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


def write(
    folder: Path, jobset: JobSet, marble: Episode, exclusive: Episode, profiles: Mapping[str, Profile]
) -> list[Path]:
    """Writes a timeline per run, comparison.html and summary.json into `folder`; their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"MARBLE's job set {jobset.number}"
    runs = [ReportedRun(each.policy, each.history, profiles, each.factor) for each in (marble, exclusive)]
    told = notes(marble.factor)
    pages = {f"{each.name}.html": render([each], f"{name} under {each.name}", told) for each in runs}
    tables = [runs_table(jobset, marble, exclusive), jobs_table([marble, exclusive])]
    pages["comparison.html"] = render(runs, f"{name}: marble and fifo-exclusive", told, tables)
    pages["summary.json"] = json.dumps(summary(marble, exclusive), indent=2) + "\n"
    for file, text in pages.items():
        (folder / file).write_text(text, encoding="utf-8")
    return [folder / file for file in pages]
