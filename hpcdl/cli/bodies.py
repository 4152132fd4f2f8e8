"""The gist of an event's body, as people read it in `hpcdl events`."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from hpcdl.cli.output import Row
from hpcdl.core.units import count, fold_nodes, seconds_text

_LEFT_OUT = ("age_s", "membership", "request_id", "boot_id", "log_id")
"""For programs; --json has them."""
_SWITCHES = ("held", "max_parallel")
"""Told only where they are set."""


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
        if not (key in _SWITCHES and value in (False, 0))
    ]
    return " ".join(told)


def _text(key: str, value: Any) -> str:
    if key == "spec" and isinstance(value, Mapping) and "walltime_s" in value:
        return _pilot(value)
    if key == "job" and isinstance(value, Mapping):
        return _batch_job(value)
    if key == "spec" and isinstance(value, Mapping):
        return json.dumps(shlex.join(map(str, value.get("command") or ())), ensure_ascii=False)
    if key == "indices" and isinstance(value, list):
        return ",".join(_steps(each) for each in value)
    if key == "sweep" and isinstance(value, list):
        return json.dumps(
            " ".join(f"{name}={','.join(map(str, values))}" for name, values in value), ensure_ascii=False
        )
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


def _steps(value: Any) -> str:
    """`7`, `1-100`, `1-9:2`."""
    first, last, step = value
    return str(first) if first == last else f"{first}-{last}" + (f":{step}" if step != 1 else "")


def _pilot(value: Mapping[str, Any]) -> str:
    """What a pilot asks for: `"2 nodes for 1 h 00 min in killable: 2 idle nodes"`."""
    where = f" in {value['queue']}" if value.get("queue") else ""
    asked = f"{count(value.get('nodes', 1), 'node')} for {seconds_text(value['walltime_s'])}{where}"
    return json.dumps(f"{asked}: {value['why']}" if value.get("why") else asked, ensure_ascii=False)


def _batch_job(value: Mapping[str, Any]) -> str:
    """`"RUNNING on n[1-2], preempted: TERM_PREEMPT"`."""
    where = f" on {fold_nodes(map(str, value['nodes']))}" if value.get("nodes") else ""
    preempted = ", preempted" if value.get("preempted") else ""
    reason = f": {value['reason']}" if value.get("reason") else ""
    return json.dumps(f"{value.get('state')}{where}{preempted}{reason}", ensure_ascii=False)


def _placement(value: Mapping[str, Any]) -> str:
    shares = [each for each in value.get("shares") or () if isinstance(each, Mapping)]
    where = " ".join(f"{each.get('node')}:{','.join(map(str, each.get('gpus') or ()))}" for each in shares)
    return f"{where} ({value.get('role')})"


def _target(value: Mapping[str, Any]) -> str:
    placement = value.get("placement")
    where = _placement(placement) if isinstance(placement, Mapping) else "no GPUs"
    return f"job {value.get('job')} {where}: {value.get('reason')}"
