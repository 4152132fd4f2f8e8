"""A plan told to people: why each layer has its width, and the page that draws it."""

import random
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from hpcdl.deeppool.models import model_document
from hpcdl.deeppool.page import plan_page
from hpcdl.deeppool.planner import plan_burst
from hpcdl.deeppool.problem import BurstProblem, BurstProblemError, read_problem
from hpcdl.deeppool.why import width_reasons
from tests.deeppool import brute


def vgg(**more: object) -> BurstProblem:
    return read_problem(model_document("vgg16") | more)


def test_why_says_what_other_widths_would_cost() -> None:
    problem = vgg(limit=2.0)
    plan = plan_burst(problem)
    why = width_reasons(problem, plan)
    assert list(why) == [layer.name for layer in problem.layers]
    assert why["conv1_1"].startswith("no wider width: there are 8 GPUs; on 4 it would take ")
    assert re.search(r"on 8 it would take .* an amplification of [\d.]+, over the limit of 2", why["conv5_1"])
    assert why["fc8"].endswith("1 is the fewest")
    thrifty = vgg(budget=1.2)
    assert "GPU-ms more than the budget has left" in "".join(width_reasons(thrifty, plan_burst(thrifty)).values())
    small = vgg(gpus=64, global_batch=2)
    assert "there are 2 samples" in "".join(width_reasons(small, plan_burst(small)).values())


def test_no_single_other_width_that_is_allowed_would_be_faster() -> None:
    """What `why` says of an optimal plan: whatever breaks nothing takes longer, or as long."""
    draw, seen = random.Random("why"), 0
    for _ in range(150):
        problem = replace(read_problem(brute.random_chain(draw)), limit=draw.choice([1.5, 2.0]))
        plan = plan_burst(problem)
        for line in width_reasons(problem, plan).values():
            for step in line.split("; "):
                found = re.fullmatch(
                    r"on \d+ it would take (as long|([\d.e+-]+) ms (longer|less))"
                    r"(?:, the layers that read it ([\d.e+-]+) ms (longer|less))?",
                    step,
                )
                if found:
                    own = float(found[2] or 0) * (-1 if found[3] == "less" else 1)
                    rest = float(found[4] or 0) * (-1 if found[5] == "less" else 1)
                    assert own + rest >= -0.01 * max(abs(own), abs(rest)), line
                    seen += 1
    assert seen > 50


def test_why_says_of_branches_side_by_side_what_the_whole_iteration_would_take() -> None:
    """A branch that is faster with more GPUs has them not: there are too few, or another one ends later."""

    def layer(name: str, ms: float, *inputs: str) -> brute.Document:
        made = {"name": name, "inputs": [*inputs], "compute_ms": {"1": ms / 8, "8": ms}}
        return made | {"parameter_bytes": 0, "activation_bytes_per_sample": 0}

    layers = [layer("fork", 8), layer("long", 8, "fork"), layer("short", 1, "fork"), layer("join", 8, "long", "short")]
    network = {"bytes_per_s": 1e10, "latency_s": 0}
    document = {"gpus": 2, "global_batch": 8, "network": network, "layers": layers, "branches": "parallel"}
    said = {}
    for gpus in (2, 4):
        problem = read_problem(document | {"gpus": gpus})
        said[gpus] = width_reasons(problem, plan_burst(problem))["short"].split("; ")[0]
    assert said[2] == "on 2 it would take 0.5 ms less: 3 GPUs with the branches beside it, of 2"
    assert said[4] == "on 2 it would take 0.5 ms less, the iteration as long"


def test_no_single_other_width_makes_an_iteration_with_branches_side_by_side_shorter() -> None:
    draw, seen = random.Random("why side by side"), 0
    for _ in range(200):
        problem = read_problem(brute.random_branches(draw))
        try:
            plan = plan_burst(problem)
        except BurstProblemError:
            continue
        steps = [step for line in width_reasons(problem, plan).values() for step in line.split("; ")]
        assert not [step for step in steps if re.search(r"the iteration .* less$", step)]
        seen += sum("the iteration" in step for step in steps)
    assert seen > 100


@pytest.mark.parametrize("branches", ["sequence", "parallel"])
def test_the_page_draws_every_layer_inside_the_plan(branches: str) -> None:
    document = model_document("inception-v3") | {"branches": branches, "limit": 2.0}
    document["layers"][0]["name"] = "<script>alert(1)</script>"
    document["layers"][1]["inputs"] = ["<script>alert(1)</script>"]
    problem = read_problem(document)
    plan = plan_burst(problem)
    page = plan_page(problem, plan, "A <plan>", width_reasons(problem, plan))
    assert page == plan_page(problem, plan, "A <plan>", width_reasons(problem, plan))
    assert page.count("<script>") == 1, "the page's own"
    assert "<script>alert" not in page
    assert "://" not in re.sub(r"http://www.w3.org/\S*", "", page), "nothing to load"
    bars = re.findall(r'<rect x="([\d.]+)%" y="([\d.]+)" width="([\d.]+)%" height="([\d.]+)"', page)
    assert len(bars) == len(problem.layers)
    for x, y, width, height in (map(float, bar) for bar in bars):
        assert 0 <= x <= x + width <= 100.001
        assert 8 <= y <= y + height <= 268.1
    assert f"{plan.time_ms:.4g} ms" in page
    opened: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "rect", "br", "link", "line", "path"):
                opened.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            if tag not in ("rect", "path", "line"):
                assert opened.pop() == tag

    Tags().feed(re.sub(r"<rect([^>]*[^/])>", r"<g\1>", page).replace("</rect>", "</g>"))
    assert opened == []
