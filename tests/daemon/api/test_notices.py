"""What the API says of notices, stalls and what is avoided; and that nothing secret of a URL is in it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import Request

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import StallMeasurement
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.notice import NoticeRules
from hpcdl.core.model.plan import Profiles
from hpcdl.core.rules.intake import Settings
from hpcdl.daemon.api import notices
from hpcdl.daemon.api.http import ApiProblem
from hpcdl.daemon.api.nodes import avoided_rows
from hpcdl.daemon.api.notices import notice_row, notices_summary
from hpcdl.daemon.api.rows import RowBuilder, event_row
from hpcdl.daemon.api.why import explain
from hpcdl.daemon.delivery import Ways
from tests.support.model_cluster import Cluster

URL = "https://me:secret1@hooks.example.org/secret2?token=secret3"
SPEC = JobSpec(("train",), "resnet", steps=400, profile="plain", notify=(URL, "tell --key secret4"))


def told(model: Cluster) -> Cluster:
    """A job that was cancelled, and whose URL has not taken that."""
    (job,) = model.submit(SPEC)
    model.send(cmd.Cancel(job))
    model.run_to_end()
    model.send(cmd.NoticesNotTaken(URL, (1,), 1, "hooks.example.org answered 500", 15.0))
    return model


def cluster() -> Cluster:
    rules = NoticeRules((URL,))
    model = Cluster({"n1": 2}, settings=Settings(300.0, notices=rules, stall_s=None))
    model.run(1.0)
    return model


def test_nothing_secret_of_a_destination_is_shown() -> None:
    model = told(cluster())
    world = model.world
    model.send(cmd.NoticesNotTaken(URL, (1,), 2, "no", 15.0, give_up=(1,)))
    rows: list[Any] = [event_row(record) for record in model.journal.records]
    rows.append(RowBuilder(world, Profiles({}), {}, model.now).detail(model.job(1)))
    rows += [notice_row(each, notice, model.now) for each in (world, model.world) for notice in each.notices.values()]
    rows += [notices_summary(world), notices_summary(model.world)]
    assert "secret" not in json.dumps(rows)
    due = next(row for row in rows if row.get("kind") == "NoticeDue")
    assert due["body"]["destinations"] == ["https://hooks.example.org/…", "tell …"]
    assert rows[-2]["failing"] == ["https://hooks.example.org/…: hooks.example.org answered 500"]
    assert (rows[-1]["waiting"], rows[-1]["given_up"]) == (1, 1)


def test_a_destination_is_tested_at_once(tmp_path: Path) -> None:
    def ask(destination: object, folder: str | None = None) -> Any:
        body = json.dumps({"destination": destination} | ({} if folder is None else {"folder": folder})).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        request = Request({"type": "http", "method": "POST", "headers": [], "query_string": b""}, receive)
        api = SimpleNamespace(ways=Ways("d1", tmp_path), loop=SimpleNamespace(now=lambda: 5.0))
        return asyncio.run(notices.test(cast(Any, api), request))

    assert ask("cat > told") == {"destination": "cat …", "delivered": True, "why": "", "folder": str(tmp_path)}
    told = json.loads((tmp_path / "told").read_text())
    assert (told["kind"], told["text"]) == ("end", "this test of notifications is DONE")
    refused = ask("echo no secret key >&2; exit 3")
    assert (refused["delivered"], "no secret key" in refused["why"]) == (False, True)
    assert ask("https://127.0.0.1:1/x")["folder"] == ""
    (tmp_path / "job").mkdir()
    assert ask("touch here", str(tmp_path / "job"))["folder"] == str(tmp_path / "job")
    assert (tmp_path / "job" / "here").exists()
    assert ask("true", str(tmp_path / "gone"))["folder"] == str(tmp_path), "as where a job's folder is gone"
    for wrong in ("", "mailto:nobody", 7):
        with pytest.raises(ApiProblem):
            ask(wrong)


def test_the_row_of_a_notice() -> None:
    model = told(cluster())
    row = notice_row(model.world, model.world.notices[1], model.now + 5.0)
    assert (row["id"], row["kind"], row["job"], row["text"]) == (
        1, "end", 1, "job 1 (resnet) is CANCELLED: cancelled by its user",
    )  # fmt: skip
    first, second = row["destinations"]
    assert (first["state"], first["attempts"], first["retry_in_s"]) == ("failing", 1, 10.0)
    assert (second["state"], second["attempts"], second["retry_in_s"]) == ("waiting", 0, None)


def test_what_is_avoided_is_in_the_rows_and_in_why() -> None:
    model = cluster()
    model.send(cmd.Avoid("n1", 0, 600.0, "loud"), cmd.Avoid("n1", 1, 60.0))
    (job,) = model.submit(SPEC)
    first, second = avoided_rows(model.world, model.now + 10.0)
    assert (first["gpu"], first["left_s"], first["reason"]) == (0, 590.0, "loud")
    assert second["reason"] == "its user says so"
    gpus = RowBuilder(model.world, Profiles({}), {}, model.now).node("n1", {})["gpus"]
    assert [gpu["avoid_reason"] for gpu in gpus] == ["loud", "its user says so"]
    assert gpus[0]["avoided_until"] == model.now + 600.0
    answer = explain(model.world, model.job(job), {}, model.now)
    assert answer.reason.startswith("needs 1 GPU; n1:0 is excluded until ")
    assert answer.reason.endswith("its user says so (hpcdl avoid --lift)")


def test_a_stall_is_the_reason() -> None:
    model = cluster()
    (job,) = model.submit(replace(SPEC, steps=100_000, stall_s=60.0))
    model.run_until(lambda: model.job(job).running is not None and model.job(job).running.progress is not None)
    model.run(720.0)
    model.send(cmd.Tick((StallMeasurement(job, 1, ("n1",), 720.0, None, 1e6),)))
    answer = explain(model.world, model.job(job), {}, model.now + 60.0)
    assert answer.reason == "no step for 13 min 00 s; at step 0"
