"""A function as a job: what can be one, what is kept of the call, and what the job makes of it."""

import functools
import json
import math
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hpcdl.python.call import FunctionCall, SubmitError, as_json, function_call, import_folders
from hpcdl.trainer import call as runner


def train(lr: float, epochs: int = 2) -> dict[str, float]:
    return {"lr": lr, "epochs": epochs}


class Model:
    @staticmethod
    def fit(lr: float) -> float:
        return lr

    def evaluate(self) -> float:
        return 0.0


def _inner() -> Callable[[], int]:
    def nested() -> int:
        return 1

    return nested


async def coroutine() -> int:
    return 1


def test_a_function_goes_by_its_name() -> None:
    call = function_call(train, (0.1,), {"epochs": 3})
    assert (call.module, call.name, call.file, call.source) == (__name__, "train", "", __file__)
    assert function_call(Model.fit, (), {}).name == "Model.fit"
    assert function_call(math.sqrt, (2,), {}).module == "math"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda: 1, "a lambda has no name .* with def, and write it into a file"),
        (_inner(), "_inner.nested is made inside of another function, .* at the top of its file"),
        (functools.partial(train, 0.1), "functools.partial has no name"),
        (Model().evaluate, "Model.evaluate is a method, bound to an object that stays here"),
        (coroutine, "coroutine is a coroutine: give a function that runs it by asyncio.run"),
    ],
)
def test_what_a_job_cannot_import_is_refused(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(SubmitError, match=why):
        function_call(function, (), {})


def test_a_name_that_leads_to_another_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = train
    monkeypatch.setattr(sys.modules[__name__], "train", Model.fit)
    with pytest.raises(SubmitError, match="train is not this function any more"):
        function_call(old, (), {})


def test_a_function_of_a_notebook_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    exec(compile("def train():\n    return 1\n", "<cell>", "exec"), main.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(SubmitError, match=r"train is in no file, .* %%writefile train.py .* from train import train"):
        function_call(main.train, (), {})


def test_a_function_of_the_script_that_runs_goes_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("def train():\n    return 1\n")
    main = ModuleType("__main__")
    main.__file__ = str(script)
    exec(compile(script.read_text(), str(script), "exec"), main.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert function_call(main.train, (), {}).file == str(script)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({1, 2}, "lr has the type set, .* give a list"),
        (Path("x"), r"lr has the type PosixPath, .* give str\(path\)"),
        ([1, {"a": object()}], r"lr\[1\]\['a'\] has the type object, which JSON does not have: give numbers"),
        ({1: "a"}, "lr has the key 1: arguments go as JSON, whose keys are texts: '1'"),
        (len, "lr has the type builtin_function_or_method"),
    ],
)
def test_an_argument_that_is_no_json_is_refused(value: object, why: str) -> None:
    with pytest.raises(SubmitError, match=why):
        as_json(value, "lr")


def test_arguments_are_json() -> None:
    assert as_json({"a": (1, None, [True, "x"], 0.5)}, "x") == {"a": [1, None, [True, "x"], 0.5]}
    numpy = pytest.importorskip("numpy")
    assert as_json(numpy.float64(0.5), "x") == 0.5
    for value, hint in ((numpy.int64(3), r"\.item\(\)"), (numpy.zeros(2), r"\.tolist\(\)")):
        with pytest.raises(SubmitError, match=f"give {hint}"):
            as_json(value, "x")


def test_the_jobs_folders_are_the_users_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(runner.__file__).parents[2])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path, own, str(tmp_path / "missing")])
    found = import_folders(str(tmp_path / "train.py"))
    assert found[0] == str(tmp_path.resolve())
    assert os.path.realpath(own) not in found
    assert not [each for each in found if "site-packages" in each or each.endswith("lib-dynload")]
    assert str(tmp_path / "missing") not in found
    assert os.path.realpath(own) in import_folders(f"{own}/tests/train.py")


def test_the_call_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    call = FunctionCall("m", "", "train<x>", "", (1,), {"lr": 0.1})
    folder = call.folder(tmp_path / "home")
    assert folder.parent == tmp_path / "home" / "calls"
    assert folder.name.startswith("train-x--")
    call.keep(folder)
    for path, mode in ((folder, 0o700), (folder / "call.json", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    kept = json.loads((folder / "call.json").read_text())
    assert (kept["module"], kept["args"], kept["keywords"]) == ("m", [1], {"lr": 0.1})


# --- the job ----------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys
def train(lr, epochs=2):
    return {"lr": lr, "epochs": epochs, "name": __name__}
def fails(text):
    raise LookupError(text)
def unkept():
    return {1, 2}
def keyed(text):
    return [{"a": ({eval(text): 1, "1": 2},)}]
def clears():
    os.environ.clear()
    return 3
class Silent(Exception):
    def __str__(self):
        raise ValueError
def silent():
    raise Silent
def long():
    raise LookupError("first" + 40_000_000 * "x" + "last")
def suspended():
    raise SystemExit(0)
if __name__ == "__main__":
    sys.exit("run as __main__")
"""


class Place:
    """A folder with a script, and calls of its functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "script_of_a_user.py"
        self.script.write_text(SCRIPT)

    def call(self, name: str, *args: object, **more: Any) -> FunctionCall:
        return FunctionCall("script_of_a_user", "", name, str(self.script), args, **more)

    def run(self, call: FunctionCall, *words: str, **env: str) -> "tuple[int, dict[str, Any], str]":
        """The exit code of the job, what it kept, what it printed."""
        document = call.document() | {"path": [str(self.folder)]}
        folder = self.folder / f"call-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        (folder / "call.json").write_text(json.dumps(document))
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("HPCDL_", "RANK"))}
        environ |= {"PYTHONPATH": str(Path(runner.__file__).parents[2]), "HPCDL_JOB": "7", "HPCDL_INCARNATION": "2"}
        done = subprocess.run(
            [sys.executable, "-S", "-m", "hpcdl.trainer.call", str(folder), *words],
            env=environ | env, cwd="/", capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        kept = folder / "7.2.json"
        if not kept.exists():
            return done.returncode, {}, done.stdout + done.stderr
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert sorted(os.listdir(folder)) == ["7.2.json", "call.json"]
        return done.returncode, json.loads(kept.read_text()), done.stdout + done.stderr


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_job_calls_the_function_and_keeps_what_it_returns(place: Place) -> None:
    code, kept, said = place.run(place.call("train", 0.5, keywords={"epochs": 3}))
    assert (code, said) == (0, "")
    assert kept == {"value": {"lr": 0.5, "epochs": 3, "name": "script_of_a_user"}}


def test_a_script_is_imported_and_not_run(place: Place) -> None:
    call = FunctionCall("script_of_a_user", str(place.script), "train", str(place.script), (1,))
    assert place.run(call)[1]["value"]["name"] == "script_of_a_user"
    other = place.folder / "elsewhere" / place.script.name  # its name leads to the first one
    other.parent.mkdir()
    other.write_text(SCRIPT)
    call = FunctionCall("script_of_a_user", str(other), "train", str(other), (1,))
    assert place.run(call)[1]["value"]["name"] == "hpcdl_script"


def test_what_it_raises_is_kept_and_raised(place: Place) -> None:
    code, kept, said = place.run(place.call("fails", "no data"))
    assert code == 1
    raised = kept["raised"]
    assert (raised["type"], raised["message"]) == ("LookupError", "no data")
    assert "in fails" in raised["traceback"]
    assert "call.py" not in raised["traceback"]
    assert said.endswith("LookupError: no data\n")


def test_a_module_that_cannot_be_imported_is_told_alike(place: Place) -> None:
    code, kept, _ = place.run(FunctionCall("module_that_there_is_not", "", "train", ""))
    assert (code, kept["raised"]["type"]) == (1, "ModuleNotFoundError")


def test_a_value_that_is_no_json_fails_nothing(place: Place) -> None:
    code, kept, _ = place.run(place.call("unkept"))
    assert code == 0
    assert kept["unkept"].startswith("it returned what JSON does not have (set: ")


def test_a_suspend_leaves_no_result(place: Place) -> None:
    assert place.run(place.call("suspended")) == (0, {}, "")


def test_members_of_an_array_have_their_own_arguments(place: Place) -> None:
    swept = place.call("train", sweep={"lr": {"0.1": 0.1, "x": [1]}, "epochs": {"3": 3}})
    assert place.run(swept, "--lr", "x", "--epochs", "3")[1]["value"] == {
        "lr": [1],
        "epochs": 3,
        "name": "script_of_a_user",
    }
    cases = place.call("train", cases=(((1,), {}), ((), {"lr": 2, "epochs": 5})))
    assert place.run(cases, "1")[1]["value"]["lr"] == 2
    assert place.run(cases, "0")[1]["value"]["lr"] == 1


def test_only_the_first_rank_keeps_a_value_and_any_of_them_an_error(place: Place) -> None:
    for others in (
        {"HPCDL_NODE_RANK": "1"},
        {"HPCDL_RANK": "1", "HPCDL_NODE_RANK": "0"},
        {"HPCDL_RANK": "0", "HPCDL_NODE_RANK": "1"},
    ):
        assert place.run(place.call("train", 1), **others)[:2] == (0, {}), others
    assert "value" in place.run(place.call("train", 1), RANK="0", HPCDL_RANK="0", HPCDL_NODE_RANK="0")[1]
    assert "raised" in place.run(place.call("fails", "x"), HPCDL_RANK="3")[1]


def test_a_rank_of_the_shell_that_submitted_it_is_none_of_the_job(place: Place) -> None:
    assert "value" in place.run(place.call("train", 1), RANK="1")[1]
    assert "value" in place.run(place.call("train", 1), RANK="1", WORLD_SIZE="4", TORCHELASTIC_RUN_ID="7")[1]


def test_the_function_may_empty_its_environment(place: Place) -> None:
    assert place.run(place.call("clears"))[:2] == (0, {"value": 3})


@pytest.mark.parametrize("key", ["1", "None", "True", "0.5"])
def test_keys_that_are_no_texts_are_not_made_texts(place: Place, key: str) -> None:
    code, kept, _ = place.run(place.call("keyed", key))
    assert code == 0
    assert kept["unkept"].startswith(f"it returned what JSON does not have (list: {key} is the key of a dict")


def test_an_error_without_a_text_or_with_a_huge_one_is_kept(place: Place) -> None:
    code, kept, _ = place.run(place.call("silent"))
    assert (code, kept["raised"]["type"]) == (1, "script_of_a_user.Silent")
    assert kept["raised"]["message"] == "<its text cannot be had: ValueError>"
    assert "in silent" in kept["raised"]["traceback"]
    code, kept, _ = place.run(place.call("long"))
    raised = kept["raised"]
    assert (code, raised["type"], raised["message"][:6], raised["message"][-5:]) == (
        1,
        "LookupError",
        "firstx",
        "xlast",
    )
    assert len(raised["message"]) < 1.01 * runner.MESSAGE
    assert len(raised["traceback"]) < 1.01 * runner.TRACEBACK
    assert "in long" in raised["traceback"]
