"""What the API answers of a job that is rescaled in place, and of a node that is to be left."""

from hpcdl.core import commands as cmd
from hpcdl.daemon.rows import Rows
from tests.core.stage import running


def test_a_job_in_the_middle_of_a_rescale() -> None:
    stage = running(3, "12", weight=2.0)
    stage.want(j1="13")
    stage.run(0.1)
    stage.send(cmd.Drain("n2", 5000.0, True, "maintenance"))
    rows = Rows(stage.world, stage.profiles, {}, stage.now)
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
