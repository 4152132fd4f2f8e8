"""Measured throughputs as CSV: `model_and_batch_per_gpu,gpu,gpus,steps_per_s`, one measurement a row.

They become profiles; the models of workloads are found among them by name (`job_rules`).
"""

from pathlib import Path

from hpcdl.core.model.profile import MAX_GPUS, Point, Profile, ProfileError
from hpcdl.sim.readers.source import Place, number, read_values, whole, word

COLUMNS = {"model_and_batch_per_gpu": word(), "gpu": word(), "gpus": whole(1, MAX_GPUS), "steps_per_s": number()}


def read_throughputs(path: Path, gpu_type: str = "", gpus_per_node: int | None = None) -> dict[str, Profile]:
    """A profile for every model, by its casefolded name, with a curve for every GPU type.

    A step is one batch of the size in the name, on one GPU: on n GPUs n of them are trained side by side, and
    steps_per_s counts all of them (in Gavel's table two GPUs give up to twice the steps/s of one, which no other count
    does). So rates are taken as they are, and a job's steps are the batches that it has to train.

    The default curve is that of `gpu_type`, else of the first type in the file that measured the model. With
    `gpus_per_node`, what was measured on more GPUs than a node has counts for several nodes as well. A rate of 0 says
    that it could not be measured, and is passed over: a GPU type that has no other one gets the default curve.
    WorkloadError with line and column for what makes no sense.
    """
    path = Path(path)
    models: dict[str, tuple[str, dict[str, dict[int, float]]]] = {}
    lines: dict[tuple[str, str, int], int] = {}
    for place, (model, gpu, gpus, rate) in read_values(path, COLUMNS):
        name, kind = " ".join(model.split()), gpu.lower()
        if not name or not kind:
            place.wrong("gpu" if name else "model_and_batch_per_gpu", "must not be empty")
        key = (name.casefold(), kind, gpus)
        if key in lines:
            place.wrong("gpus", f"{name} on {gpus} {kind} is in line {lines[key]} already: keep one of them")
        lines[key] = place.line
        _, kinds = models.setdefault(name.casefold(), (name, {}))
        if rate > 0:
            kinds.setdefault(kind, {})[gpus] = rate
    if not models:
        Place(path).wrong("", "holds no measurement below its header")
    wanted = gpu_type.strip().lower()
    found: dict[str, Profile] = {}
    for key_name, (name, kinds) in models.items():
        if not kinds:
            Place(path).wrong("steps_per_s", f"{name} has no rate above 0: leave the model out")
        curves = {kind: _points(curve, gpus_per_node) for kind, curve in kinds.items()}
        first = wanted if wanted in curves else next(iter(curves))
        source = (
            f"{path.name}: measured steps/s, a step being one batch on one GPU; on {first} unless a node says otherwise"
        )
        try:
            found[key_name] = Profile(name=name, points=curves[first], kinds=tuple(curves.items()), source=source)
        except ProfileError as error:
            Place(path).wrong("", str(error))
    return found


def _points(curve: dict[int, float], per_node: int | None) -> tuple[Point, ...]:
    points = [(1, gpus, rate) for gpus, rate in curve.items()]
    if per_node is not None:
        points += [
            (gpus // per_node, per_node, rate)
            for gpus, rate in curve.items()
            if gpus > per_node and gpus % per_node == 0
        ]
    return tuple(sorted(points))
