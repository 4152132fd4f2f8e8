"""What a loop keeps beside its parts comes back as it was, and nothing but plain values does."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hpcdl.trainer.values import Values, decode, encode

PLAIN: dict[str, Any] = {
    "running": 0.1 + 0.2,
    "lowest": -math.inf,
    "step": 7,
    "done": False,
    "best": None,
    "name": "a",
    "losses": [1.5, [2, (3, "x")]],
    "by_class": {0: {"hits": 2}, (1, 2): [], "array": 1},
    "seen": {3, 1},
    "nothing": {},
}


def through_json(values: Values) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(values.state_dict()))
    return state


def test_plain_values_come_back_as_they_were() -> None:
    loaded = Values()
    loaded.load_state_dict(through_json(Values(**PLAIN)))
    assert vars(loaded) == PLAIN


def test_a_list_that_the_loop_has_a_name_for_stays_that_list() -> None:
    values = Values(losses=[], table={"old": 1}, seen=set(), running=0.0)
    losses, table, seen = values.losses, values.table, values.seen
    values.load_state_dict(through_json(Values(losses=[1.0], table={2: 3}, seen={4}, running=1.5)))
    assert (losses, table, seen, values.running) == ([1.0], {2: 3}, {4}, 1.5)
    values.losses.append(2.0)
    assert losses == [1.0, 2.0]


def test_arrays_come_back_bit_for_bit() -> None:
    numpy = pytest.importorskip("numpy")
    saved = Values(confusion=numpy.arange(6.0).reshape(2, 3), last=numpy.float32(0.1), empty=numpy.zeros((0, 2)))
    loaded = Values()
    loaded.load_state_dict(through_json(saved))
    for name, value in vars(saved).items():
        assert numpy.array_equal(getattr(loaded, name), value)
        assert getattr(loaded, name).dtype == value.dtype
    loaded.confusion += 1  # it can be written to


def test_tensors_come_back_bit_for_bit() -> None:
    torch = pytest.importorskip("torch")
    kinds = {"half": torch.bfloat16, "double": torch.float64, "whole": torch.int64, "flag": torch.bool}
    tensors = {name: torch.tensor([[0.1, 0.0], [3.0, -1.0]]).to(kind) for name, kind in kinds.items()}
    tensors["scalar"] = torch.tensor(0.25, requires_grad=True)
    loaded = Values(half=torch.zeros(1))
    loaded.load_state_dict(through_json(Values(**tensors)))
    for name, value in tensors.items():
        assert torch.equal(getattr(loaded, name), value)
        assert getattr(loaded, name).dtype == value.dtype


def test_a_tensor_that_an_optimizer_has_stays_that_tensor() -> None:
    torch = pytest.importorskip("torch")
    scale = torch.nn.Parameter(torch.zeros(2))
    Values(scale=scale).load_state_dict(through_json(Values(scale=torch.tensor([0.5, 1.5]))))
    assert scale.tolist() == [0.5, 1.5]
    values = Values(scale=scale)
    values.load_state_dict(through_json(values))
    assert values.scale is scale
    assert scale.requires_grad


def test_arrays_of_records_are_refused() -> None:
    """Their fields would not come back."""
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="best is of ndarray"):
        Values(best=numpy.zeros(2, dtype=[("loss", "f8"), ("step", "i4")])).state_dict()


@pytest.mark.parametrize("value", [object(), [1, len], {"key": {2: object()}}, 1j])
def test_what_cannot_be_saved_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"best is of .*, which is no plain value"):
        Values(best=value).state_dict()


def test_arrays_are_kept_where_the_caller_keeps_them() -> None:
    kept: list[Any] = []

    def keep(value: Any) -> int | None:
        if not isinstance(value, bytes):
            return None
        kept.append(value)
        return len(kept) - 1

    encoded = json.loads(json.dumps(encode({"best": [b"one", b"two"]}, "x", keep)))
    assert kept == [b"one", b"two"]
    assert decode(encoded, kept.__getitem__) == {"best": [b"one", b"two"]}
