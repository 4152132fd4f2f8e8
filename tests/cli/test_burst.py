"""`hpcdl burst`: plans in three forms, options before the file, and every malformed problem as one line and exit 1."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hpcdl.deeppool.models import model_document
from tests.cli.conftest import Run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(model_document("vgg16")))
    return path


def test_a_plan_is_a_table_or_json_or_widths(hpcdl: Run, file: Path) -> None:
    told = hpcdl("burst", "plan", file, "--limit", 2)
    assert told.code == 0
    assert "optimal" in told.out
    assert "conv1_1" in told.out
    answer = hpcdl("burst", "plan", file, "--limit", 2, "--json").value
    assert answer["schema"] == 1
    assert answer.keys() >= {"time_ms", "gpu_ms", "optimal", "seconds", "layers", "data_parallel"}
    assert answer["layers"][0].keys() == {"name", "gpus", "first_gpu", "start_ms", "time_ms", "amplification"}
    assert max(layer["amplification"] for layer in answer["layers"]) <= 2 * (1 + 1e-9)
    words = hpcdl("burst", "plan", file, "--limit", 2, "--quiet").out.splitlines()
    assert words == [f"{layer['gpus']} {layer['name']}" for layer in answer["layers"]]


def test_why_and_the_page_of_a_plan(hpcdl: Run, file: Path) -> None:
    page = file.with_name("plan.html")
    told = hpcdl("burst", "plan", file, "--limit", 2, "--why", "-o", page)
    assert told.code == 0
    assert "over the limit of 2" in told.out
    assert f"wrote {page}" in told.out
    assert page.read_text().count("over the limit of 2") > 1
    answer = hpcdl("burst", "plan", file, "--limit", 2, "--why", "--json").value
    assert all(layer["why"] for layer in answer["layers"])


def test_options_take_the_place_of_what_the_file_says(hpcdl: Run, file: Path) -> None:
    document = model_document("vgg16") | {"limit": 1.0}
    file.write_text(json.dumps(document))
    narrow = hpcdl("burst", "plan", file, "--json").value
    assert {layer["gpus"] for layer in narrow["layers"]} == {1}
    wide = hpcdl("burst", "plan", file, "--limit", 100, "--gpus", 16, "--batch", 64, "--json").value
    assert max(layer["gpus"] for layer in wide["layers"]) == 16
    thrifty = hpcdl("burst", "plan", file, "--budget", 1.2, "--json").value
    assert thrifty["gpu_ms"] <= 1.2 * thrifty["one_gpu_ms"] * (1 + 1e-9)
    assert thrifty["time_ms"] < narrow["time_ms"], "a budget takes the place of the file's limit"
    refused = hpcdl("burst", "plan", file, "--budget", 1.2, "--limit", 2)
    assert refused.code == 2
    assert "exclude each other" in refused.err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "the problem must be a JSON object"),
        ('{"gpus": NaN}', "network is missing"),
        ("\x00\xff", "is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON"),
    ],
)
def test_what_is_no_problem_is_one_line(hpcdl: Run, file: Path, text: str, what: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    told = hpcdl("burst", "plan", file, "--json")
    assert told.code == 1
    assert told.out == ""
    assert what in told.err
    assert len(told.err.splitlines()) == 1


def test_what_has_no_plan_names_the_layer(hpcdl: Run, file: Path) -> None:
    told = hpcdl("burst", "plan", file, "--limit", 0.5)
    assert (told.code, told.out) == (1, "")
    assert "layer 'conv1_1': no number of GPUs keeps it within 0.5 x" in told.err
    assert len(told.err.splitlines()) == 1
    missing = hpcdl("burst", "plan", "vgg61")
    assert (missing.code, missing.out) == (1, "")
    assert "did you mean vgg16?" in missing.err


def test_compare_and_scaling_predict(hpcdl: Run) -> None:
    told = hpcdl("burst", "compare", "vgg16", "--limits", "1.5,2", "--json").value
    points: list[dict[str, Any]] = told["points"]
    assert [point["kind"] for point in points] == ["data parallel", *["burst parallel"] * 3, *["partition"] * 4]
    assert points[-1]["total_per_s"] == pytest.approx(points[0]["total_per_s"]), "all GPUs to the foreground"
    assert points[1]["total_per_s"] > 1.2 * points[0]["total_per_s"]
    assert told["speedup_over_one_partition"] > told["speedup_over_partition"] > 0
    assert "against partitions" in hpcdl("burst", "compare", "vgg16").out
    told = hpcdl("burst", "scaling", "vgg16", "--gpus", 16, "--json").value
    assert [point["gpus"] for point in told["by_gpus"]] == [1, 2, 4, 8, 16]
    for point in told["by_gpus"]:
        assert point["batch_optimal"] >= max(point["weak"], point["strong"]) - 1e-9
        assert point["burst"] >= point["batch_optimal"] - 1e-9
    assert told["by_network"][0]["strong"] < told["by_network"][-1]["strong"], "a slow network hurts strong scaling"
    assert "SAMPLES/GPU" in hpcdl("burst", "scaling", "vgg16", "--gpus", 4).out


def test_one_gpu_is_no_gpus(hpcdl: Run, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    told = [hpcdl("burst", command, "vgg16", "--gpus", 1).out for command in ("plan", "compare", "scaling")]
    assert hpcdl("burst", "plan", "vgg16", "--gpus", 1, "-o", page).code == 0
    for text in (*told, page.read_text()):
        assert "1 GPU" in text
        assert not re.search(r"\b1 GPUs", text.replace("1 of 1 GPUs", ""))


def test_branches_side_by_side_say_that_moves_between_them_are_not_counted(hpcdl: Run, tmp_path: Path) -> None:
    file, page = tmp_path / "inception.json", tmp_path / "plan.html"
    file.write_text(json.dumps(model_document("inception-v3") | {"branches": "parallel"}))
    told = hpcdl("burst", "plan", file, "--limit", 4, "-o", page)
    assert "moves between lanes  not counted: it takes longer" in told.out
    assert "moves between their GPUs are not counted" in page.read_text()
    for command in ("plan", "compare"):
        assert hpcdl("burst", command, file, "--json").value["moves_between_lanes"] == "not counted"
