"""What the trainer library says of a model: by PyTorch and Keras, where they are there."""

import copy
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hpcdl.trainer import structure


class Said:
    """As much of a session as is used."""

    def __init__(self, inside: bool = True, writer: bool = True) -> None:
        self.inside, self.writer, self.packets = inside, writer, list[dict[str, Any]]()

    def send(self, kind: str, **body: Any) -> bool:
        self.packets.append({"type": kind, **body})
        return True


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    session = Said()
    monkeypatch.setattr(structure, "attach", lambda: session)
    return session


def small(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 2))


def test_a_module_is_said_once_after_its_first_pass(said: Said) -> None:
    torch = pytest.importorskip("torch")
    model = small(torch)
    structure.watch(model)
    assert said.packets == []
    state = torch.get_rng_state()
    for _ in range(3):
        model.train()(torch.zeros(5, 8))
    assert torch.equal(state, torch.get_rng_state())
    assert said.packets == [
        {
            "type": "model",
            "layers": [["Linear", 3], ["ReLU", 2]],
            "parameters": 8 * 16 + 16 + 16 * 16 + 16 + 16 * 2 + 2,
            "activation_bytes": 4 * (16 + 16 + 16 + 16 + 2),
        }
    ]
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_what_puts_out_several_tensors_and_what_is_wrapped(said: Said) -> None:
    torch = pytest.importorskip("torch")
    cells = torch.nn.LSTM(4, 6, batch_first=True)

    wrapped = torch.nn.DataParallel(cells)
    structure.watch(wrapped)
    wrapped(torch.zeros(2, 5, 4))
    (packet,) = said.packets
    assert packet["layers"] == [["LSTM", 1]]
    assert packet["activation_bytes"] == 4 * (5 * 6 + 6 + 6), "outputs, and the last states"


def test_what_is_called_by_keywords_and_puts_out_names(said: Said) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(4, 3)
    model = torch.nn.ModuleDict({"layer": layer})
    model.forward = lambda mask=None, inputs=None: {"logits": layer(inputs)}
    structure.watch(model)
    model(mask=None, inputs=torch.zeros(7, 4))
    assert [packet["activation_bytes"] for packet in said.packets] == [4 * 3]


def test_of_several_modules_the_largest(said: Said) -> None:
    torch = pytest.importorskip("torch")
    large, optimizer = small(torch), object()
    structure.report_largest([torch.nn.Linear(2, 2), large, optimizer])
    assert (said.packets[0]["parameters"], said.packets[0]["activation_bytes"]) == (450, None)
    structure.report_largest([optimizer])
    structure.report_largest([torch.nn.LazyLinear(3), large])
    assert len(said.packets) == 1


def compiled(torch: Any, model: Any) -> Any:
    torch.compile(model, fullgraph=True, backend="eager")(torch.zeros(3, 8)).sum().backward()


def stored(torch: Any, model: Any) -> Any:
    torch.save(model, io.BytesIO())


@pytest.mark.filterwarnings("ignore")  # TorchScript is to go
@pytest.mark.parametrize(
    "use",
    [
        compiled,
        stored,
        lambda torch, model: copy.deepcopy(model),
        lambda torch, model: torch.jit.script(model),
        lambda torch, model: torch.jit.trace(model, torch.zeros(3, 8)),
    ],
    ids=["compiled", "stored", "copied", "scripted", "traced"],
)
def test_what_the_helpers_report_leaves_the_module_alone(said: Said, use: Callable[[Any, Any], Any]) -> None:
    """Hooks would end all of these."""
    torch = pytest.importorskip("torch")
    model = small(torch)
    structure.report_largest([model])
    assert len(said.packets) == 1
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    use(torch, model)


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype
def test_what_has_no_shape_does_not_end_the_pass(said: Said) -> None:
    torch = pytest.importorskip("torch")

    class Padded(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Linear(2, 2)

        def forward(self, given: Any) -> Any:
            return torch.nested.to_padded_tensor(given, 0.0)

    model = Padded()
    structure.watch(model)
    assert model(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])).shape == (2, 3)
    assert [packet["activation_bytes"] for packet in said.packets] == [None]


def test_of_what_is_compiled_the_activations_are_not_known(said: Said) -> None:
    torch = pytest.importorskip("torch")
    model = small(torch)
    model.compile(backend="eager")
    structure.watch(model)
    assert [packet["activation_bytes"] for packet in said.packets] == [None]


def test_what_is_no_model_says_nothing_and_ends_nothing(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    structure.watch(None)
    structure.watch({"model": 1})
    structure.watch(torch.nn.ReLU())  # without a parameter
    broken = small(torch)
    monkeypatch.setattr(broken, "modules", lambda: 1 / 0)
    structure.watch(broken)
    assert said.packets == []


@pytest.mark.parametrize("session", [Said(inside=False), Said(writer=False)])
def test_only_the_first_rank_says_it_and_only_inside(session: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(structure, "attach", lambda: session)
    model = small(torch)
    structure.watch(model)
    structure.report_largest([model])
    model(torch.zeros(1, 8))
    assert session.packets == []
    assert not model._forward_hooks


def test_a_keras_model(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    pytest.importorskip("torch")
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(2)])
    structure.watch(model)
    assert said.packets == [], "it is not built"
    model.build((None, 8))
    structure.watch(model)
    (packet,) = said.packets
    assert packet["layers"] == [["Dense", 2]]
    assert packet["parameters"] == 8 * 16 + 16 + 16 * 2 + 2
    assert packet["activation_bytes"] == 4 * (16 + 2)


def test_it_imports_no_framework() -> None:
    code = "import sys, hpcdl.trainer.structure; sys.exit(bool({'torch', 'keras', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
