"""What the API answers of a job that is rescaled in place, and of a node that is to be left."""

from dataclasses import replace

from hpcdl.core.model import commands as cmd
from hpcdl.core.model.commands import DeadlineForecast
from hpcdl.daemon.api.rows import RowBuilder, deadline_of
from hpcdl.daemon.api.viewers import job_seen
from hpcdl.daemon.api.why import explain
from tests.support.stage import running


def test_a_job_in_the_middle_of_a_rescale() -> None:
    stage = running(3, "12", weight=2.0)
    stage.want(j1="13")
    stage.run(0.1)
    stage.send(cmd.Drain("n2", 5000.0, True, "maintenance"))
    rows = RowBuilder(stage.world, stage.profiles, {}, stage.now)
    detail = rows.detail(stage.job(1))
    assert (detail["state"], detail["nodes"], detail["nodes_max"]) == ("RESCALING", 1, 6)
    assert (detail["rescale"], detail["weight"]) == ("in-process", 2.0)
    assert detail["placement"] == {"n1": [0, 1], "n3": [0, 1]}
    (incarnation,) = detail["incarnations"]
    assert (incarnation["membership"], incarnation["members"]) == (2, ["n1"])
    assert (incarnation["joining"], incarnation["leaving"]) == (["n3"], ["n2"])
    assert (incarnation["rescale_at"], incarnation["broken_at"]) == (stage.job(1).running.rescale_at, None)
    node = rows.node("n2", {})
    assert (node["leaving"], node["until"], node["place"]) == (True, 5000.0, [])


def test_what_is_expected_of_a_deadline() -> None:
    stage = running(1, "1", deadline=9_000.0)
    rows = RowBuilder(stage.world, stage.profiles, {}, stage.now)
    nothing = {"at": 9_000.0, "meets": None, "since": None, "probability": None, "ends_at": None, "slipped": False}
    assert rows.detail(stage.job(1))["deadline"] == nothing
    for probability in (0.9, 0.2):
        stage.send(cmd.Outlooks((DeadlineForecast(1, probability, 9_500.0),)))
    detail = RowBuilder(stage.world, stage.profiles, {}, stage.now).detail(stage.job(1))
    told = {"meets": False, "since": stage.now, "probability": 0.2, "ends_at": 9_500.0, "slipped": True}
    assert detail["deadline"] == nothing | told
    assert not {"deadline", "spec"} & set(job_seen({"job": detail})["job"]), "not for viewers, nor the git state in it"
    answer = explain(stage.world, stage.job(1), {}, stage.now + 60.0)
    assert "its deadline slipped 1 min 00 s ago: until then it was expected to be met" in answer.details
    spec = stage.job(1).spec
    assert deadline_of(replace(stage.job(1), spec=replace(spec, deadline=None))) is None
