"""Problems that come with hpcdl: measured layers of two models on an A100, as JSON documents in data/."""

import json
from importlib.resources import files
from typing import Any


def model_names() -> tuple[str, ...]:
    """The models there are: `vgg16` and `inception-v3`."""
    folder = files("hpcdl.deeppool").joinpath("data")
    return tuple(sorted(each.name.removesuffix(".json") for each in folder.iterdir() if each.name.endswith(".json")))


def model_document(name: str) -> dict[str, Any]:
    """The problem of a model as JSON: 8 GPUs, the paper's global batch. `source` and `notes` say what it rests on."""
    text = files("hpcdl.deeppool").joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
