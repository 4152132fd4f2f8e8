"""`GET /v1/jobs/ID/series`: the curves of a job, what it reported and what it used; and means of use (docs/api.md).

`daemon/series` keeps them, `core/model/series` thins them.
"""

import asyncio

from starlette.requests import Request

from hpcdl.core.model.series import GPU_USE, MOST, USE, not_finite_since, series_json, thinned
from hpcdl.daemon.api.context import ApiContext, route
from hpcdl.daemon.api.http import ApiProblem, number_of
from hpcdl.daemon.api.jobs import existing
from hpcdl.daemon.api.rows import Json
from hpcdl.daemon.series import Points, divergences_of

LEAST = 4
"""Points that a series is thinned to."""


@route("GET", "/v1/jobs/{job:int}/series")
async def series(api: ApiContext, request: Request) -> Json:
    """All series of a job, metrics first; with `points` at most so many points of each."""
    most = number_of(request.query_params["points"], "points") if "points" in request.query_params else MOST
    if most < LEAST:
        raise ApiProblem(400, f"points must be {LEAST} or more")
    number = (await existing(api, request)).id
    points = {} if api.series is None else await api.series.points(number)
    return {"job": number, "series": await asyncio.to_thread(series_rows, points, most)}


@route("GET", "/v1/use")
async def use(api: ApiContext, request: Request) -> Json:
    """What jobs used of their GPUs, on average while they held them: as `report.use.JobUse`, null where not known."""
    means = {} if api.series is None else await api.series.means(GPU_USE)
    return {"use": [{"job": job, **{name: means[job].get(name) for name in GPU_USE}} for job in sorted(means)]}


def series_rows(found: Points, most: int) -> list[Json]:
    """The series as JSON, of each at most so many points: losses first, then other metrics, of both those that stay the
    same last, then what the job uses.
    """

    def level(name: str) -> bool:
        values = {value for point in found[name] for value in (point.low, point.high)}
        return len(found[name]) > 1 and len(values) == 1 and None not in values

    metrics = sorted(found.keys() - USE.keys(), key=lambda name: (level(name), "loss" not in name, name))
    names = [*metrics, *(name for name in USE if name in found)]
    since = not_finite_since(divergences_of(found))
    return [
        series_json(name, thinned(found[name], most)) | {"not_finite_since": since.get(name)}
        for name in names
        if found[name]
    ]
