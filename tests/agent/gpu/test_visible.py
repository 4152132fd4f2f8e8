"""CUDA_VISIBLE_DEVICES, inherited and given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdl.agent.gpu.device import Gpu
from hpcdl.agent.gpu.visible import cuda_visible_devices, visible

A, B, C = "GPU-aaaa-0", "GPU-aabb-1", "GPU-cccc-2"
GPUS = tuple(Gpu(index, uuid, "V100", 16384) for index, uuid in enumerate((A, B, C)))
CUT = (
    Gpu(0, A, "A100", 40960),
    Gpu(200, "MIG-11", "MIG 3g", 20096),
    Gpu(201, "MIG-12", "MIG 3g", 20096),
)


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        (None, [A, B, C]),
        ("", []),
        ("  ", []),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        (C, [C]),
        ("GPU-c", [C]),
        ("GPU-aab,GPU-aaa", [B, A]),
        ("GPU-aa", []),  # fits two
        ("0,GPU-aa,2", [A]),
        (f"{B},0", [B, A]),
        ("0,3,1", [A]),
        ("0,-1,1", [A]),
        ("-1", []),
        ("1,1", [B]),
        ("0,,1", [A]),
        ("0,x,1", [A]),
        ("²", []),
        ("1" * 30, []),
        ("all", []),
        ("NoDevFiles", []),
    ],
)
def test_masks(mask: str | None, kept: list[str]) -> None:
    assert [gpu.uuid for gpu in visible(GPUS, mask)] == kept


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        ("MIG-12,0", ["MIG-12", A]),
        ("MIG-1", []),
        ("1", ["MIG-11"]),
        ("0,1", [A, "MIG-11"]),
        ("MIG-99,MIG-11", ["MIG-99", "MIG-11"]),
        ("MIG-GPU-aaaa/3/0", ["MIG-GPU-aaaa/3/0"]),
        ("MIG-", []),
    ],
)
def test_masks_with_mig_devices(mask: str, kept: list[str]) -> None:
    assert [gpu.uuid for gpu in visible(CUT, mask)] == kept


def test_mig_devices_that_are_not_listed_have_an_index_of_their_own() -> None:
    kept = visible(GPUS, "MIG-1,MIG-2,0")
    assert len({gpu.index for gpu in kept}) == 3
    assert kept[0].memory_mib == 0


@given(st.text(alphabet="012GPUMIG-abc, x", max_size=30))
def test_a_mask_never_gives_a_gpu_twice_or_one_that_is_not_there(mask: str) -> None:
    kept = visible(GPUS, mask)
    assert len({gpu.uuid for gpu in kept}) == len(kept)
    assert all(gpu in GPUS or gpu.uuid.startswith("MIG-") for gpu in kept)


def test_what_a_trainer_is_given_means_the_same_again() -> None:
    given = cuda_visible_devices((GPUS[2], GPUS[0]))
    assert given == f"{C},{A}"
    assert visible(GPUS, given) == (GPUS[2], GPUS[0])
    assert cuda_visible_devices(()) == ""
