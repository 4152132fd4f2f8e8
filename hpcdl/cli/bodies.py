"""The gist of an event's body, as people read it in `hpcdl events`."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from hpcdl.cli.output import Row

_LEFT_OUT = ("age_s", "membership", "request_id", "boot_id", "log_id")
"""For programs; --json has them."""


def body_text(row: Row) -> str:
    """`incarnation=1 node=n1 step=120 total=900`: without what is empty and what the event's stream says already."""
    body = row.get("body")
    if not isinstance(body, Mapping):
        return ""
    stream = row.get("stream")
    told = [
        f"{key}={_text(key, value)}"
        for key, value in body.items()
        if key not in _LEFT_OUT and value not in (None, "", [], {}) and f"{key}/{value}" != stream
    ]
    return " ".join(told)


def _text(key: str, value: Any) -> str:
    if key == "spec" and isinstance(value, Mapping):
        return json.dumps(shlex.join(map(str, value.get("command") or ())), ensure_ascii=False)
    if key == "placement" and isinstance(value, Mapping):
        return _placement(value)
    if key == "targets" and isinstance(value, list):
        return "; ".join(_target(each) for each in value if isinstance(each, Mapping))
    if key == "gpus" and isinstance(value, list):
        return str(len(value))
    if isinstance(value, str) and value and not any(c.isspace() or c in "\"'=" for c in value):
        return value
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    return json.dumps(value, ensure_ascii=False)


def _placement(value: Mapping[str, Any]) -> str:
    shares = [each for each in value.get("shares") or () if isinstance(each, Mapping)]
    where = " ".join(f"{each.get('node')}:{','.join(map(str, each.get('gpus') or ()))}" for each in shares)
    return f"{where} ({value.get('role')})"


def _target(value: Mapping[str, Any]) -> str:
    placement = value.get("placement")
    where = _placement(placement) if isinstance(placement, Mapping) else "no GPUs"
    return f"job {value.get('job')} {where}: {value.get('reason')}"
