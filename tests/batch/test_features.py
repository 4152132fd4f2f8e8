"""What batch jobs ask of nodes, held against nodes as the API has them."""

from typing import Any

import pytest

from hpcdl.batch.features import met, too_little_memory


def node(name: str, gpu: str, memory_mib: int, number: int = 4) -> dict[str, Any]:
    return {"name": name, "gpus": [{"name": gpu, "memory_mib": memory_mib}] * number}


A100 = node("g1", "NVIDIA A100-SXM4-80GB", 81920)
SMALL = node("g2", "NVIDIA A100-PCIE-40GB", 40960)
V100 = node("v1", "Tesla V100-SXM2-16GB", 16160)
HOST = {"name": "c1", "gpus": []}


@pytest.mark.parametrize(
    "needs, nodes, is_met",
    [
        ("gpu:a100", [A100, SMALL, HOST], True),
        ("gpu:a100", [A100, V100], False),
        ("gpu:a100_80gb", [A100], True),
        ("gpu:a100-sxm4-80gb", [A100], True),
        ("gpu:nvidia_a100_80gb", [SMALL], False),
        ("gpu:v100-32", [V100], False),
        ("gpu:v100-16", [V100], True),
        ("gpu:TeslaV100_SXM2_16GB", [V100], True),
        ("gpu:NVIDIAA100_SXM4_80GB", [A100], True),
        ("gpu:volta", [V100], True),
        ("gpu:ampere", [V100], False),
        ("gpu:ampere", [A100], True),
        ("gpu:h100", [A100], False),
        ("gpu:a100", [HOST], False),
        ("gpu:a100", [], False),
        ("feature:ib&gpu", [{**A100, "features": {"ib", "rome"}}], True),
        ("feature:ib|opa", [{**A100, "features": {"ib"}}, {**V100, "features": {"opa"}}], True),
        ("feature:ib", [{**A100, "features": {"ib"}}, V100], False),
        ("without:g7,g[8-9]", [A100, HOST], True),
        ("without:g[1-3]", [A100, V100], False),
        ("without:./bad-nodes", [A100], False),
        ("feature:gpu", [A100, V100], True),
        ("feature:gpu", [HOST], False),
        ("feature:gpu&hbm80g", [A100], True),
        ("feature:gpu&hbm80g", [A100, SMALL], False),
        ("feature:a100|v100", [A100, V100], True),
        ("feature:[a100|h100]", [V100], False),
        ("feature:gpu80", [A100], True),
        ("feature:gpu80", [SMALL], False),
        ("feature:skylake", [A100], False),
        ("feature:gpu&ib", [A100], False),
        ("feature:rack1*2", [A100], False),
        ("feature:a100&(hbm80g|hbm40g)", [A100, SMALL], True),
        ("feature:v100&(hbm80g|hbm16g)", [A100], False),
        ("feature:(a100&hbm80g)|(v100&(16g|32g))", [A100, V100], True),
        ("feature:gpu&", [A100], False),
        ("select:gpuhost", [A100], True),
        ("select:||", [A100], False),
        ("gpu:20g", [A100, SMALL], True),
        ("gpu:20g", [V100], False),
        ("select:ngpus>0", [A100, HOST], True),
        ("select:ngpus>=8", [A100], False),
        ("select:(ngpus==4) && type==any", [A100], True),
        ("select:mem>32000 && ngpus_physical>0", [A100], True),
        ("select:gpu_model0==A100", [A100], True),
        ("select:gpu_model0==V100 || gpu_model0==A100", [A100], True),
        ("select:model==XeonGold", [A100], False),
        ("select:gpu_mtotal0>=32000", [V100], False),
        ("select:hname!=g1", [A100], False),
        ("select:rhel8", [A100], False),
        ("hosts:g1 g2.site.org+1", [A100, SMALL], True),
        ("hosts:gpu_hosts", [A100], False),
    ],
)
def test_every_node_with_gpus_must_be_so(needs: str, nodes: list[dict[str, Any]], is_met: bool) -> None:
    assert met(needs, nodes) is is_met


def test_memory_that_no_node_has() -> None:
    nodes = [{**A100, "memory_mib": 500_000}, {**V100, "memory_mib": 180_000}, {**HOST, "memory_mib": 2_000_000}]
    assert too_little_memory(512 * 1024, nodes) == ""
    assert too_little_memory(1024 * 1024, nodes) == (
        "it asks for 1024 GiB of memory on a node, and the largest of hpcdl has 488"
    )
    assert too_little_memory(1024 * 1024, []) == ""
