"""Whether nodes have what a batch job asks of them: types of GPUs, Slurm's features, LSF's select strings. Pure.

hpcdl chooses among its nodes by the number of GPUs alone, so a wish is met where every node that has GPUs meets it.
What is not understood is not met: the batch system knows better.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from hpcdl.core.model.units import expand_nodes

Node = Mapping[str, Any]
"""A node as `GET /v1/nodes` has it; with `features` where the batch system was asked for them."""

_GENERIC = frozenset({"nvidia", "tesla", "geforce", "quadro", "gpu", "gpus", "gpuhost", ""})
_MEMORY = re.compile(r"(?:hbm|gpu|vram|mem)?_?(\d{1,4})g(?:b|ib)?|(?:gpu)?(\d{2,3})")
_LOAD = re.compile("(max)?(mem|swp|tmp)|ncpus|ut|r15s|r1m|r15m|pg|io|ls|it|scratch")
"""What LSF says of a host beside its GPUs."""
_CLAUSE = re.compile(r"(\w+)\s*(==|!=|>=|<=|>|<|=)\s*(.+)")
_ARCHITECTURES = {
    "kepler": "k40|k80", "pascal": "p100|p40|p4|1080", "volta": "v100|titanv", "turing": "t4|rtx[68]000|20[678]0",
    "ampere": "a100|a30|a40|a10|a[2456]000|30[6789]0",
    "ada": "l40|l4|40[6789]0|6000ada", "hopper": "h100|h200|h800|gh200",
    "blackwell": "b100|b200|gb200",
}  # fmt: skip
"""The cards of an architecture by which sites name types."""
_ROOM = 0.9
"""Of the memory that a card or a node is sold with: what its driver or kernel counts is less."""


def met(needs: str, nodes: Iterable[Node]) -> bool:
    """Whether all of these nodes meet what an `IgnoredOption` needs; not where there is none."""
    kind, _, text = needs.partition(":")
    nodes = list(nodes)
    with_gpus = [node for node in nodes if node["gpus"]]
    if kind == "feature":
        return bool(with_gpus) and all(_features(text, node) for node in with_gpus)
    if kind == "select":
        return bool(with_gpus) and all(_selected(text, node) for node in with_gpus)
    if kind == "without":
        excluded = set(expand_nodes(text)) if "/" not in text else None  # a file's names are not known
        return excluded is not None and bool(with_gpus) and all(str(node["name"]) not in excluded for node in nodes)
    if kind == "hosts":
        named = {each.partition(".")[0].partition("+")[0] for each in text.split()}
        return bool(with_gpus) and all(str(node["name"]).partition(".")[0] in named for node in with_gpus)
    return kind == "gpu" and bool(with_gpus) and all(_has(text, node) for node in with_gpus)


def too_little_memory(asked_mib: int, nodes: Iterable[Node]) -> str:
    """Why no node that has GPUs has so much memory; "" where one has, or there is none."""
    largest = max((node["memory_mib"] for node in nodes if node["gpus"]), default=0)
    if not largest or _ROOM * asked_mib <= largest:
        return ""
    return (
        f"it asks for {asked_mib / 1024:.0f} GiB of memory on a node, and the largest of hpcdl has {largest / 1024:.0f}"
    )


def _features(text: str, node: Node) -> bool:
    """`gpu&hbm80g`, `[a100|h100]`, `ib&(a100|h100)`: of Slurm's --constraint, from left to right."""
    text = re.sub(r"[\s\"']", "", text).translate(str.maketrans("[]", "()"))
    if "*" in text:
        return False
    while group := _GROUP.search(text):
        text = text.replace(group[0], _MET if _features(group[1], node) else _UNMET)
    parts = re.findall(r"[&|,]|[^&|,]+", text)
    if not parts or len(parts) % 2 == 0:
        return False
    found = _feature(parts[0], node)
    for operator, part in zip(parts[1::2], parts[2::2], strict=True):
        found = (found or _feature(part, node)) if operator == "|" else (found and _feature(part, node))
    return found


_GROUP = re.compile(r"\(([^()]*)\)")
_MET, _UNMET = "<met>", "<unmet>"
"""In place of a group in parentheses, once it is known."""


def _feature(text: str, node: Node) -> bool:
    return text == _MET or (text != _UNMET and (_has(text, node) or text in node.get("features", ())))


def _selected(text: str, node: Node) -> bool:
    """`ngpus>0 && type==any` of LSF's select[]."""
    return all(
        any(_clause(each.strip().strip("()").strip(), node) for each in part.split("||")) for part in text.split("&&")
    )


def _clause(text: str, node: Node) -> bool:
    if not text:
        return False
    match = _CLAUSE.fullmatch(text)
    if match is None:
        return _has(text, node)
    name, operator, value = match[1].lower(), match[2], match[3].strip("\"' ")
    if _LOAD.fullmatch(name):
        return True
    if name == "type":
        return operator in ("=", "==") and value in ("any", "local", "X86_64", "LINUX64")
    if name in ("hname", "host"):
        return (str(node["name"]) == value) == (operator in ("=", "=="))
    if name.startswith("ngpus") and re.fullmatch("[0-9]{1,9}", value):
        gpus, least = len(node["gpus"]), int(value)
        return {">": gpus > least, ">=": gpus >= least, "==": gpus == least, "=": gpus == least}.get(operator, False)
    if "model" in name and operator in ("=", "=="):
        return _has(value, node)
    if ("mtotal" in name or "mem" in name) and operator in (">", ">=") and (match := re.match(r"(\d{1,15})", value)):
        return all(gpu["memory_mib"] >= _ROOM * int(match[1]) for gpu in node["gpus"])
    return False


def _has(token: str, node: Node) -> bool:
    """Whether all GPUs of the node are of a type, or have so much memory: `a100`, `a100_80gb`, `hbm80g`, `gpu`."""
    words = [word for word in re.split(r"[-_ .]+", token.lower()) if word not in _GENERIC]
    for gpu in node["gpus"]:
        name = re.sub(r"[^a-z0-9]", "", str(gpu["name"]).lower())
        for word in words:
            memory = _MEMORY.fullmatch(word)
            if word in _ARCHITECTURES:
                if not re.search(_ARCHITECTURES[word], name):
                    return False
                continue
            if memory is not None:
                if gpu["memory_mib"] < _ROOM * 1024 * int(memory[1] or memory[2]):
                    return False
            elif word not in name and re.sub(r"^(nvidia|tesla)", "", word) not in name:
                return False
    return True
