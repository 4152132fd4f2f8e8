"""The latency of an inference, answered with its submit: from its profile, or what was seen of its type (GENIE, eq. 4).

It reads the world and decides nothing; computed beside the event loop.
"""

import asyncio
import math
from collections.abc import Sequence

from hpcdl.core.controller.type_profiles import TypeProfiles
from hpcdl.core.controller.view_builder import build_view
from hpcdl.core.model.plan import JobView, Profiles, View
from hpcdl.core.model.profile import Profile
from hpcdl.core.model.units import count, took_text
from hpcdl.core.model.world import Job, World
from hpcdl.daemon.api.context import ApiContext
from hpcdl.daemon.api.rows import Json

MOST = 50
"""Inferences of one submit that are answered with their latency."""

SAID = 4
"""Numbers of GPUs of which the sentence tells; the answer has all."""


async def latencies_json(api: ApiContext, world: World, jobs: Sequence[Job], now: float) -> dict[int, Json]:
    """`{"latency": ...}` as `latencies` has it, by job."""
    infer = [job for job in jobs if job.spec.infers and not job.finished][:MOST]
    return await asyncio.to_thread(latencies, world, infer, api.profiles, now) if infer else {}


def latencies(world: World, jobs: Sequence[Job], profiles: Profiles, now: float) -> dict[int, Json]:
    """By job `{"latency": {"batch_size", "steps", "placements", "source", "text"}}`.

    `placements`: `{"kind", "nodes", "gpus", "step_s", "seconds", "low_s", "high_s"}` for each type of GPU there is and
    each number of GPUs that the job takes on each of its nodes; the last three null without a number of steps. None at
    all, and `source` "", where its rate is not known: `text` says why.
    """
    view = build_view(world, profiles, now)
    return {job.id: {"latency": latency(world, view, job, profiles)} for job in jobs}


def latency(world: World, view: View, job: Job, profiles: Profiles) -> Json:
    """That of one of them; it is in the view."""
    seen = view.by_id[job.id]
    answer: Json = {"batch_size": job.spec.batch_size, "steps": seen.total, "placements": [], "source": ""}
    if seen.profile is None:
        predicted = TypeProfiles().prediction(world, job.spec, profiles)
        step = "hpcdl profile run --light --kind inference measures it"
        why = "it says no batch size: --batch B" if predicted is None else f"{predicted.words}; {step}"
        return answer | {"text": f"its latency is not known: {why}"}
    kinds = sorted({node.kind for node in view.nodes})
    sizes = {kind: sorted((len(node.gpus) for node in view.nodes if node.kind == kind), reverse=True) for kind in kinds}
    places = [
        _on(seen, seen.profile, kind, gpus)
        for kind in kinds
        if len(sizes[kind]) >= seen.nodes
        for gpus in seen.allowed(sizes[kind][seen.nodes - 1])
    ]
    source = f"profile {job.spec.profile}" if job.spec.profile else seen.profile.source
    return answer | {
        "placements": places,
        "source": source,
        "text": _text(places, seen, source, several=len(kinds) > 1),
    }


def _on(job: JobView, profile: Profile, kind: str, gpus: int) -> Json:
    """Eq. 4 on so many GPUs of a kind on each of the job's nodes."""
    from hpcdl.estimators.certainty import WholeTime, certainty  # numpy takes its time, and few submits ask for it

    rate = profile.on(kind).rate(gpus, job.nodes)
    place: Json = {"kind": kind, "nodes": job.nodes, "gpus": gpus, "step_s": 1 / rate}
    if job.total is None:
        return place | {"seconds": None, "low_s": None, "high_s": None}
    seconds = profile.startup_s + job.total / rate
    whole = WholeTime(steps=job.total, seconds=seconds, rest_s=profile.startup_s)
    sure = certainty(profile, kind, job.nodes, gpus, whole)
    return place | {
        "seconds": seconds,
        "low_s": seconds * math.exp(sure.low),
        "high_s": seconds * math.exp(sure.high),
    }


def _text(places: Sequence[Json], job: JobView, source: str, *, several: bool) -> str:
    """`its latency is about 42 s (38 s to 46 s) on 1 GPU, 22 s (20 s to 24 s) on 2 GPUs: predicted by ...`."""
    if not places:
        return "its latency is not known: no node could hold it"
    nodes = "" if job.nodes == 1 else f" on each of {job.nodes} nodes"
    whole = job.total is not None
    told = []
    for place in places[:SAID]:
        kind = f" ({place['kind'] or 'of no known type'})" if several else ""
        low, high = (took_text(place[key]) if whole else "" for key in ("low_s", "high_s"))
        took = f"{took_text(place['seconds'])} ({low} to {high})" if whole else f"{1000 * place['step_s']:.3g} ms"
        told.append(f"{took} on {count(place['gpus'], 'GPU')}{kind}{nodes}")
    what = "its latency is" if whole else "one of its steps takes (--steps N says how many)"
    return f"{what} about {', '.join(told)}: {source}"
