"""Plans against brute force: never slower than the best within the limit, and the limit kept everywhere."""

import random
from collections.abc import Callable

import pytest

from hpcdl.deeppool.planner import BurstPlan, plan_burst, plan_to_json
from hpcdl.deeppool.problem import BurstProblemError, read_problem
from tests.deeppool import brute
from tests.support.seeds import seeds


def plan(document: brute.Document) -> BurstPlan | None:
    """The plan of a document, None where there is none; whatever it says of a layer is checked by the contract."""
    try:
        made = plan_burst(read_problem(document))
    except BurstProblemError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert any(f"layer {layer['name']!r}" in refusal for layer in document["layers"]), refusal
        return None
    by_name = {layer["name"]: layer for layer in document["layers"]}
    assert [layer.name for layer in made.layers] == list(by_name)
    for layer in made.layers:
        raw = by_name[layer.name]
        assert layer.gpus in brute.widths_of(document)
        assert layer.time_ms == pytest.approx(
            brute.layer_ms(document, raw, by_name, dict(made.widths)), rel=1e-9, abs=1e-12
        )
        assert brute.keeps_limit(document, raw, layer.gpus, layer.time_ms)
        alone = brute.compute_ms(raw, document["global_batch"])
        if alone > 0:
            assert layer.amplification == pytest.approx(layer.gpus * layer.time_ms / alone)
    assert made.gpu_ms == pytest.approx(sum(layer.gpus * layer.time_ms for layer in made.layers))
    return made


@pytest.mark.parametrize("kind", [brute.random_chain, brute.random_graph])
def test_a_plan_in_sequence_is_the_best_of_all_within_the_limit(
    kind: Callable[[random.Random], brute.Document],
) -> None:
    draw, refused = random.Random(f"plans {kind.__name__}"), 0
    many = seeds(1500)
    for _ in range(many):
        document = kind(draw)
        best, made = brute.best_in_sequence(document), plan(document)
        if best is None:
            assert made is None, document
            refused += 1
        else:
            assert made is not None, document
            assert made.time_ms == pytest.approx(best, rel=1e-9), document
            assert made.optimal
            assert [layer.first_gpu for layer in made.layers] == [0] * len(made.layers)
    assert 0 < refused < many / 2


def test_the_answer_says_what_data_parallelism_takes_and_what_is_extrapolated() -> None:
    document = {
        "schema": 1,
        "gpus": 8,
        "global_batch": 32,
        "limit": None,
        "budget": None,
        "widths": "powers-of-two",
        "network": {"bytes_per_s": 1e10, "latency_s": 1e-5},
        "layers": [
            {
                "name": "b",
                "inputs": ["a"],
                "compute_ms": {"4": 1.0, "8": 3.0, "32": 9.0},
                "parameter_bytes": 0,
                "activation_bytes_per_sample": 0,
            },
            {
                "name": "a",
                "inputs": [],
                "compute_ms": {"1": 0.4, "2": 0.7},
                "parameter_bytes": 1e6,
                "activation_bytes_per_sample": 1e6,
            },
        ],
    }
    problem = read_problem(document)
    made = plan_burst(problem)
    answer = plan_to_json(problem, made, 0.25)
    assert [layer["name"] for layer in answer["layers"]] == ["b", "a"], "in the document's order"
    assert [layer.get("extrapolated") for layer in answer["layers"]] == [None, True]
    assert answer["seconds"] == 0.25
    assert "moves_between_lanes" not in answer
    # a: the line through 1 and 2 samples to 4; 2 x 7/8 of a megabyte at 10 GB/s, and the latency.
    a_ms, b_ms = 0.4 + 3 * 0.3 + 1e3 * (2 * 7 / 8 * 1e6 / 1e10 + 1e-5), 1.0 + 1e3 * 1e-5
    assert answer["data_parallel"]["time_ms"] == pytest.approx(a_ms + b_ms)
    assert answer["data_parallel"]["gpu_ms"] == pytest.approx(8 * (a_ms + b_ms))
    assert answer["one_gpu_ms"] == pytest.approx(9.0 + 0.4 + 31 * 0.3)
    assert made.layers[0].start_ms == pytest.approx(made.layers[1].time_ms), "a runs first, which b reads"


@pytest.mark.parametrize("kind", [brute.random_chain, brute.random_graph])
def test_a_plan_within_a_budget_is_the_best_of_all_and_says_so_only_if_it_is(
    kind: Callable[[random.Random], brute.Document],
) -> None:
    draw, refused, proven = random.Random(f"budgets {kind.__name__}"), 0, 0
    many = seeds(400)
    for _ in range(many):
        document = kind(draw)
        document["budget"] = draw.choice([0.9, 1, 1.05, 1.2, 1.5, 2, 3])
        document["limit"] = document["limit"] if draw.random() < 0.4 else None
        best, made = brute.best_in_sequence(document), plan(document)
        if best is None:
            assert made is None, document
            refused += 1
            continue
        assert made is not None, document
        assert made.gpu_ms <= document["budget"] * made.one_gpu_ms * (1 + 1e-9), document
        assert made.bound_ms <= best * (1 + 1e-9) <= made.time_ms * (1 + 2e-9), document
        if made.optimal:
            assert made.time_ms == pytest.approx(best, rel=1e-9), document
            proven += 1
    assert 0 < refused < many / 2
    assert proven > 0.9 * (many - refused)


def test_a_plan_with_branches_side_by_side_is_the_best_of_all_and_never_on_more_gpus() -> None:
    draw = random.Random("side by side")
    refused = crowded = nested = compared = 0
    many = seeds(150)
    while compared + refused < many:
        document = brute.random_branches(draw)
        if len(document["layers"]) > 6:
            continue
        best, made = brute.best_side_by_side(document), plan(document)
        if best is None:
            assert made is None, document
            refused += 1
            continue
        compared += 1
        assert made is not None, document
        assert made.optimal
        assert made.time_ms == pytest.approx(best, rel=1e-9), document
        nested += any(layer.first_gpu > 0 for layer in made.layers)
        for one in made.layers:
            assert one.first_gpu + one.gpus <= document["gpus"]
            for other in made.layers:
                together = min(one.start_ms + one.time_ms, other.start_ms + other.time_ms) - 1e-9
                if one.name < other.name and max(one.start_ms, other.start_ms) < together:
                    crowded += 1
                    assert not set(range(one.first_gpu, one.first_gpu + one.gpus)) & set(
                        range(other.first_gpu, other.first_gpu + other.gpus)
                    ), document
    assert 0 < refused < compared * 2
    assert crowded > many / 2
    assert nested > many / 10


def side_by_side(gpus: int, inputs: dict[str, list[str]]) -> brute.Document:
    layer = {"compute_ms": {"8": 1.0}, "parameter_bytes": 0, "activation_bytes_per_sample": 0}
    return {
        "schema": 1,
        "gpus": gpus,
        "global_batch": 8,
        "limit": None,
        "budget": None,
        "branches": "parallel",
        "widths": "powers-of-two",
        "network": {"bytes_per_s": 1e10, "latency_s": 0},
        "layers": [{"name": name, "inputs": theirs, **layer} for name, theirs in inputs.items()],
    }


def test_what_cannot_run_side_by_side_is_named() -> None:
    fork = {"f": [], "a": ["f"], "b": ["f"], "c": ["f"], "j": ["a", "b", "c"]}
    with pytest.raises(BurstProblemError, match="layer 'j': its branches need 3 GPUs side by side, of 2"):
        plan_burst(read_problem(side_by_side(2, fork)))
    problem = read_problem(side_by_side(3, fork))
    made = plan_burst(problem)
    assert made.time_ms == pytest.approx(3)
    assert plan_to_json(problem, made, 0.0)["moves_between_lanes"] == "not counted"
    with pytest.raises(BurstProblemError, match="layers 'f', 'a', 'b', 'c', …: branches that cross cannot run"):
        plan_burst(
            read_problem(
                side_by_side(8, {"f": [], "a": ["f"], "b": ["f"], "c": ["a", "b"], "d": ["a", "b"], "j": ["c", "d"]})
            )
        )
    with pytest.raises(BurstProblemError, match="a budget is kept with branches in sequence only"):
        plan_burst(read_problem(side_by_side(8, fork) | {"budget": 2}))
