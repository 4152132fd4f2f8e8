"""A problem's document: what is malformed is one line that names its place."""

import json
import math
import random
from copy import deepcopy
from typing import Any

import pytest

from hpcdl.deeppool.models import model_document, model_names
from hpcdl.deeppool.planner import data_parallel, plan_burst
from hpcdl.deeppool.problem import BurstLayer, BurstProblemError, problem_to_json, read_problem
from tests.deeppool import brute
from tests.support.seeds import seeds


def document() -> dict[str, Any]:
    layer = {"inputs": [], "compute_ms": {"1": 1.0, "4": 3.0}, "parameter_bytes": 10, "activation_bytes_per_sample": 10}
    return {
        "schema": 1,
        "gpus": 4,
        "global_batch": 4,
        "limit": 2.0,
        "budget": None,
        "widths": "all",
        "network": {"bytes_per_s": 1e9, "latency_s": 1e-6},
        "layers": [{"name": "a", **deepcopy(layer)}, {"name": "b", **deepcopy(layer), "inputs": ["a"]}],
    }


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        (("gpus",), 0, "gpus is 0"),
        (("gpus",), 2.5, "gpus is 2.5"),
        (("gpus",), True, "gpus must be a whole number"),
        (("gpus",), 10**400, "gpus is"),
        (("global_batch",), -1, "global_batch is -1"),
        (("global_batch",), math.nan, "global_batch must be a whole number, not nan"),
        (("limit",), "2", "limit must be a number, not '2'"),
        (("limit",), 0, "limit is 0; it must be above 0"),
        (("limit",), math.nan, "limit is nan"),
        (("budget",), math.inf, "budget is inf"),
        (("schema",), 2, "schema is 2"),
        (("widths",), "some", "widths is 'some'; it must be powers-of-two or all"),
        (("branches",), ["parallel"], "branches is ['parallel']"),
        (("network",), 3, "network must be a JSON object"),
        (("network", "bytes_per_s"), 0, "network.bytes_per_s is 0; it must be above 0"),
        (("network", "latency_s"), -1e-6, "network.latency_s is -1e-06; it must be at least 0"),
        (("layers",), [], "layers must be a list with at least one layer"),
        (("layers", 1), "b", "layers[1] must be a JSON object"),
        (("layers", 1, "name"), "", "layers[1].name must be a text"),
        (("layers", 1, "name"), "a", "two layers are called 'a'"),
        (("layers", 1, "inputs"), ["c"], "layer 'b': no layer is called 'c', its input"),
        (("layers", 1, "inputs"), ["b"], "layer 'b': its inputs lead back to itself"),
        (("layers", 0, "inputs"), ["b"], "layer 'a': its inputs lead back to itself"),
        (("layers", 1, "inputs"), ["a", "a"], "layer 'b': inputs names a layer twice"),
        (("layers", 1, "inputs"), "a", "layer 'b': inputs must be a list"),
        (("layers", 1, "compute_ms"), {}, "layer 'b': compute_ms must have a time"),
        (("layers", 1, "compute_ms"), {"0": 1}, "layer 'b': compute_ms: '0' is not a number of samples"),
        (("layers", 1, "compute_ms"), {"1.5": 1}, "'1.5' is not a number of samples"),
        (("layers", 1, "compute_ms"), {"1": 1, "01": 2}, "compute_ms has 1 samples twice"),
        (("layers", 1, "compute_ms"), {"1": -1}, "layer 'b': compute_ms of 1 samples is -1"),
        (("layers", 1, "compute_ms"), {"1": math.nan}, "layer 'b': compute_ms of 1 samples is nan"),
        (("layers", 1, "parameter_bytes"), None, "layer 'b': parameter_bytes must be a number"),
        (("layers", 1, "activation_bytes_per_sample"), 1e300, "activation_bytes_per_sample is 1e+300"),
    ],
)
def test_what_is_malformed_is_named(path: tuple[str | int, ...], value: Any, what: str) -> None:
    wrong: Any = document()
    place = wrong
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(BurstProblemError) as caught:
        read_problem(wrong)
    assert what in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(BurstProblemError, match="gpus is a huge number"):
        read_problem(document() | {"gpus": 10**5000})


def test_too_many_widths_are_refused_before_memory_is() -> None:
    wide = document() | {"gpus": 65_536, "global_batch": 65_536}
    with pytest.raises(BurstProblemError, match="65536 widths are too many to search"):
        plan_burst(read_problem(wide))
    assert plan_burst(read_problem(wide | {"widths": "powers-of-two"})).optimal
    layers = [
        {**document()["layers"][0], "name": str(each), "activation_bytes_per_sample": each} for each in range(300)
    ]
    with pytest.raises(BurstProblemError, match="2048 widths of 300 layers are too many to hold"):
        plan_burst(read_problem(document() | {"gpus": 2048, "global_batch": 2048, "layers": layers}))


def test_a_network_without_a_bandwidth_is_refused() -> None:
    with pytest.raises(BurstProblemError, match="bytes_per_s is 1e-308; it must be at least 1"):
        read_problem(document() | {"network": {"bytes_per_s": 1e-308, "latency_s": 0}})


def test_branches_that_keep_the_limit_only_on_more_gpus_than_there_are() -> None:
    def layer(name: str, *inputs: str, ms: float = 1.0) -> dict[str, Any]:
        return {"name": name, "inputs": inputs, "compute_ms": {"1": ms, "4": ms}, **nothing}

    nothing = {"parameter_bytes": 0, "activation_bytes_per_sample": 0}
    both = [layer("a"), *(layer(each, "a") for each in "bcdef"), layer("g", *"bcdef")]
    wrong = document() | {"layers": [json.loads(json.dumps(each)) for each in both], "branches": "parallel"}
    with pytest.raises(BurstProblemError, match="layer 'g': its branches need 5 GPUs side by side, of 4"):
        plan_burst(read_problem(wrong))


def test_what_is_missing_is_named() -> None:
    for path in [("gpus",), ("global_batch",), ("network",), ("layers",), ("network", "latency_s")] + [
        ("layers", 1, key) for key in document()["layers"][1]
    ]:
        wrong: Any = document()
        place = wrong
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        with pytest.raises(BurstProblemError, match=rf"{path[-1]} is missing"):
            read_problem(wrong)


def test_garbage_is_refused_in_one_line_or_planned() -> None:
    """Random values in random places: never another exception than the one that is for the user."""
    draw, refused = random.Random("garbage"), 0
    values: list[Any] = [
        None,
        True,
        -1,
        0,
        1,
        2**70,
        1e17,
        0.5,
        math.nan,
        -math.inf,
        "",
        "x",
        [],
        {},
        [[]],
        {"1": {}},
        "b\n",
    ]

    def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path, *(each for key, inner in below for each in places(inner, (*path, key)))]

    many = seeds(1500)
    for _ in range(many):
        wrong: Any = document()
        for _ in range(draw.randint(1, 2)):
            path = draw.choice(places(wrong))
            place = wrong
            for key in path[:-1]:
                place = place[key]
            if path:
                place[path[-1]] = draw.choice(values)
        try:
            made = plan_burst(read_problem(wrong))
        except BurstProblemError as error:
            refused += 1
            text = str(error)
        else:
            text = f"{made.time_ms}"
            assert math.isfinite(made.time_ms)
        assert text
        assert "\n" not in text
    assert many / 2 < refused < many


def test_a_problem_is_written_as_it_is_read() -> None:
    draw = random.Random("round trip")
    for _ in range(50):
        problem = read_problem(brute.random_graph(draw))
        assert read_problem(json.loads(json.dumps(problem_to_json(problem)))) == problem


def test_compute_is_linear_between_the_points_and_goes_on_outside_by_the_two_nearest() -> None:
    layer = BurstLayer("a", (), ((2, 1.0), (4, 2.0), (8, 10.0)))
    assert [layer.compute(each) for each in (1, 2, 3, 4, 6, 8, 10)] == [0.5, 1.0, 1.5, 2.0, 6.0, 10.0, 14.0]
    assert [layer.extrapolates(each) for each in (1, 2, 8, 9)] == [True, False, False, True]
    assert BurstLayer("a", (), ((2, 1.0), (4, 9.0))).compute(1) == 0.0, "time is never negative"
    assert BurstLayer("a", (), ((2, 1.0),)).compute(7) == 1.0


def test_the_models_are_those_of_the_papers_table_1() -> None:
    assert model_names() == ("inception-v3", "vgg16")
    for name, layers, millions in (("vgg16", 21, 138), ("inception-v3", 119, 24)):
        raw = model_document(name)
        problem = read_problem(raw)
        assert len(problem.layers) == layers
        assert sum(layer.parameter_bytes for layer in problem.layers) / 4e6 == pytest.approx(millions, abs=0.5)
        assert raw["source"]
        assert raw["notes"]
        made = plan_burst(problem)
        assert made.optimal
        assert made.time_ms <= data_parallel(problem).time_ms
