"""`hpcdl.policy`, from which a policy author imports: what is in it, and that the guide needs nothing else."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

import hpcdl.policy
from hpcdl.policies import all_policies
from hpcdl.policy import NodeView, View
from tests.adaptive.views import job

GUIDE = (Path(__file__).parents[1] / "docs" / "policy-guide.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
STAYS = """
BadPlan Item JobView NodeView Placement Plan Policies Policy Pool Profile Role Share Solution Standing Target View check
count fold_nodes impossible lean_pool_of most_free packed pool_of role_reason seconds_text solve waiting
"""
"""Policies of users import these: a name may be added, none may go."""


def test_no_name_goes() -> None:
    assert set(STAYS.split()) <= set(hpcdl.policy.__all__)
    assert all(hasattr(hpcdl.policy, name) for name in hpcdl.policy.__all__)


def test_the_guide_names_all_of_it() -> None:
    assert [name for name in hpcdl.policy.__all__ if not re.search(rf"`[^`]*\b{name}\b[^`]*`", GUIDE)] == []


def test_the_guides_example_imports_from_nowhere_else_and_decides(tmp_path: Path) -> None:
    tree = ast.parse(EXAMPLE)
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} == {"hpcdl.policy"}
    (tmp_path / "policies").mkdir(0o700)
    (tmp_path / "policies" / "smallest.py").write_text(EXAMPLE)
    (tmp_path / "policies" / "smallest.py").chmod(0o600)
    policy = all_policies(home=tmp_path).make("smallest-first")
    jobs = (job(1, gpus_min=4), job(2, gpus_min=1), job(3, gpus_min=2))
    seen = View(1000.0, (NodeView("n1", (0, 1, 2, 3)),), jobs)
    plan = policy.decide(seen)
    hpcdl.policy.check(plan, seen)
    assert [None if each.placement is None else each.placement.per_node for each in plan.targets] == [None, 1, 2]
    assert plan.targets[0].reason == "needs 4 GPUs on a node: 1 free, and smaller jobs go first"


@pytest.mark.parametrize("name", all_policies().names())
def test_a_job_that_has_only_its_scripts_end_to_run_is_placed(name: str) -> None:
    """All of its steps are done, and that end was cut off: nothing is left to train, and it is not forgotten."""
    over = replace(job(1, total=100), step=100, in_end=True, end_s=30.0)
    others = (job(2, total=100), job(3))
    seen = View(1000.0, (NodeView("n1", (0, 1, 2, 3)), NodeView("n2", (0, 1, 2, 3))), (over, *others))
    plan = all_policies().make(name).decide(seen)
    hpcdl.policy.check(plan, seen)
    assert next(each for each in plan.targets if each.job == 1).placement is not None
