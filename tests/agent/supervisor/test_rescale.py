"""Supervisors of trainers that are rescaled in place: memberships, leaving, and whose checkpoint counts."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hpcdl.agent.supervisor import packets, processes
from hpcdl.agent.supervisor.claim import write_claim
from hpcdl.agent.supervisor.packets import MalformedPacket
from tests.agent.conftest import ATTACH, CHANNEL, Agent
from tests.support.waiting import until

# Prints what it hears; says what the file `say` tells it to, a JSON list of [kind, body] lines, as they come.
TALKS = (
    ATTACH
    + """
told = 0
while True:
    packet = hear(0.02)
    if packet is not None:
        print("heard", json.dumps(packet), flush=True)
        if packet["type"] in LEAVES:
            sys.exit(0)
    lines = open("say").read().splitlines() if os.path.exists("say") else []
    for line in lines[told:]:
        kind, body = json.loads(line)
        say(kind, **body)
    told = len(lines)
"""
)


def talks(*leaves: str) -> str:
    return f"LEAVES = {leaves!r}\n{TALKS}"


def say(agent: Agent, kind: str, **body: Any) -> None:
    with open(agent.base / "say", "a") as file:
        file.write(json.dumps([kind, body]) + "\n")


def saved(agent: Agent, membership: int, step: int) -> None:
    body = {"incarnation": 2, "membership": membership, "step": step, "path": "/c", "seconds": 0.5, "final": False}
    say(agent, "saved", **body)


def membership(number: int, *nodes: str) -> dict[str, Any]:
    return {"membership": number, "nodes": list(nodes), "ranks": [1] * len(nodes), "address": "127.0.0.1:7000"}


def heard(agent: Agent, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line[6:]) for line in agent.output().split("\n")[:-1] if line.startswith("heard ")]
    return [line for line in lines if line["type"] == kind]


def test_a_rank_joins_forms_and_reforms(agent: Agent) -> None:
    agent.start(talks(), rescale="in-process")
    client = agent.connect()
    agent.wait("attached")
    say(agent, "join", address="")
    say(agent, "join", address="127.0.0.1:7000")
    assert agent.wait("join")["address"] == "127.0.0.1:7000"
    client.send("rescale", **membership(1, "n1"))
    agent.wait("rescaling", membership=1)
    until(lambda: heard(agent, "rescale"), "the membership")
    assert heard(agent, "rescale")[0] == {"v": 1, "type": "rescale", **membership(1, "n1")}
    say(agent, "reformed", membership=1, step=0, seconds=0.5)
    agent.wait("reformed", membership=1, seconds=0.5, step=0)
    for number in (3, 2, 3):  # the newest counts, and repeating it changes nothing
        client.send("rescale", **membership(number, "n1", "n2"))
    until(lambda: [each["membership"] for each in heard(agent, "rescale")] == [1, 3], "the newest membership")
    say(agent, "reformed", membership=1, step=7, seconds=0.1)  # of one that has been overtaken
    say(agent, "reformed", membership=3, step=9, seconds=0.25)
    agent.wait("reformed", membership=3, step=9)
    client.send("end", grace_s=0.0)
    assert agent.exit()["step"] == 9
    kinds = [each["type"] for each in agent.records()]
    assert kinds[:6] == ["supervisor", "started", "attached", "join", "rescaling", "reformed"]
    assert [each["membership"] for each in agent.of("rescaling")] == [1, 3]
    assert [each["membership"] for each in agent.of("reformed")] == [1, 3]


def test_a_rank_that_attaches_later_hears_of_the_newest_membership(agent: Agent) -> None:
    agent.start('while not os.path.exists("go"): time.sleep(0.01)\n' + talks(), rescale="in-process")
    client = agent.connect()
    client.send("rescale", **membership(4, "n0", "n1"))
    agent.wait("rescaling", membership=4)
    (agent.base / "go").write_text("")
    until(lambda: heard(agent, "rescale"), "the membership")
    assert heard(agent, "rescale")[0]["nodes"] == ["n0", "n1"]
    assert len(agent.of("attached")) == 1  # although its own membership, 1, is behind


def test_whose_checkpoint_counts(agent: Agent) -> None:
    agent.start(talks(), rescale="in-process")
    client = agent.connect()
    agent.wait("attached")
    saved(agent, 1, 1)  # nobody has told of any membership yet
    agent.wait("note", text="ignored: a save of attempt 2, membership 1")
    client.send("rescale", **membership(1, "n1", "n2"))
    agent.wait("rescaling", membership=1)
    saved(agent, 1, 2)
    agent.wait("saved", step=2, membership=1)
    client.send("rescale", **membership(2, "n2", "n1"))  # rank 0 is on n2 from here on
    agent.wait("rescaling", membership=2)
    saved(agent, 2, 3)
    saved(agent, 1, 4)  # written before the ranks came to the boundary
    agent.wait("saved", step=4, membership=1)
    client.send("end", grace_s=0.0)
    agent.exit()
    assert [each["step"] for each in agent.of("saved")] == [2, 4]


def test_broken_is_told_once_for_each_membership(agent: Agent) -> None:
    agent.start(talks(), rescale="in-process")
    client = agent.connect()
    agent.wait("attached")
    client.send("rescale", **membership(1, "n1", "n2"))
    agent.wait("rescaling", membership=1)
    say(agent, "broken", step=5, why="connection closed")
    say(agent, "broken", step=5, why="another rank of the node says so, too")
    record = agent.wait("broken")
    assert (record["membership"], record["step"], record["why"]) == (1, 5, "connection closed")
    client.send("rescale", **membership(2, "n1"))
    agent.wait("rescaling", membership=2)
    say(agent, "broken", step=6, why="again")
    agent.wait("broken", membership=2, step=6)
    client.send("end", grace_s=0.0)
    assert agent.exit()["step"] == 6
    assert len(agent.of("broken")) == 2


def test_leaving(agent: Agent) -> None:
    agent.start(talks("leave"), rescale="in-process")
    client = agent.connect()
    agent.wait("attached")
    client.send("rescale", **membership(1, "n1", "n2"))
    client.send("leave", grace_s=20.0)
    client.send("suspend", grace_s=20.0, by="daemon")  # of what is no concern of this node any more
    client.send("leave", grace_s=10.0)
    record = agent.exit()
    assert (record["code"], record["ended_by"]) == (0, "leave")
    assert len(heard(agent, "leave")) == 1
    assert not heard(agent, "suspend")
    assert not agent.of("suspending")
    assert not agent.of("signalled")
    assert [each["grace_s"] for each in agent.of("leaving")] in ([20.0], [20.0, 10.0])


def test_who_does_not_leave_is_ended(agent: Agent) -> None:
    agent.start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + talks(), rescale="in-process")
    client = agent.connect()
    agent.wait("attached")
    client.send("rescale", **membership(1, "n1", "n2"))
    client.send("leave", grace_s=1.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGKILL", "leave")
    assert [each["signal"] for each in agent.of("signalled")] == ["SIGTERM", "SIGKILL"]


def test_who_cannot_be_told_to_leave_gets_sigterm_at_once(agent: Agent) -> None:
    agent.start("time.sleep(300)", rescale="in-process", signal="none")
    client = agent.connect()
    agent.wait("started")
    client.send("rescale", **membership(1, "n1", "n2"))
    client.send("leave", grace_s=100.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGTERM", "leave")


def test_who_was_never_a_member_is_not_waited_for(agent: Agent) -> None:
    agent.start(ATTACH + 'print("busy", flush=True)\ntime.sleep(300)', rescale="in-process")
    client = agent.connect()
    agent.printed("busy")
    client.send("leave", grace_s=100.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGTERM", "leave")


def test_a_rank_that_attaches_while_its_node_leaves(agent: Agent) -> None:
    agent.start('while not os.path.exists("go"): time.sleep(0.01)\n' + talks("leave"), rescale="in-process")
    client = agent.connect()
    agent.wait("started")
    client.send("rescale", **membership(1, "n1", "n2"))
    client.send("leave", grace_s=100.0)
    agent.wait("leaving")
    (agent.base / "go").write_text("")
    assert agent.exit()["ended_by"] == "leave"
    assert heard(agent, "leave")


@pytest.mark.parametrize("kinds,ended_by", [(("leave", "end"), "end"), (("end", "leave"), "end"),
                                            (("suspend", "leave"), "suspend")])  # fmt: skip
def test_an_end_is_stronger_and_a_suspend_stays_one(agent: Agent, kinds: tuple[str, ...], ended_by: str) -> None:
    agent.start("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ATTACH + "time.sleep(300)")
    client = agent.connect()
    agent.wait("attached")
    for kind in kinds:
        client.send(kind, grace_s=1.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGKILL", ended_by)
    assert ("leaving" in [each["type"] for each in agent.records()]) == (kinds[0] == "leave")


def test_a_suspend_after_a_rescale_is_a_suspend(agent: Agent) -> None:
    agent.start(talks("suspend"), rescale="in-process")
    client = agent.connect()
    agent.wait("attached")
    client.send("rescale", **membership(1, "n1", "n2"))
    agent.wait("rescaling")
    client.send("suspend", grace_s=20.0)
    assert agent.exit()["ended_by"] == "suspend"


# torchrun: the ranks are started by a launcher, which is told nothing

LAUNCHER = """
import json, os, signal, subprocess, sys, time
def end(*_):
    print("terminated", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
for world in WORLDS:
    ranks = subprocess.Popen([sys.executable, "-u", "-S", "rank.py"], env=dict(os.environ, WORLD_SIZE=str(world)),
                             start_new_session=True)
    ranks.wait()
while True:
    time.sleep(0.01)
"""


def test_under_torchrun_a_membership_has_formed_when_a_rank_of_that_world_is_ready(agent: Agent) -> None:
    ready = 'say("ready", step=int(os.environ["WORLD_SIZE"]) * 10)\n'
    commits = """
while (packet := hear())["type"] != "gone":
    if packet["type"] == "rescale":
        saved(packet["membership"], final=False, membership=packet["membership"])
        if os.environ["WORLD_SIZE"] == "1":
            break
"""
    (agent.base / "rank.py").write_text(CHANNEL + ATTACH + ready + commits)
    agent.start(f"WORLDS = (1, 3)\n{LAUNCHER}", plain=True, rescale="torchrun")
    client = agent.connect()
    until(lambda: agent.of("ready"), "the first ready")
    client.send("rescale", **membership(1, "n1", "n2"))  # of a world of two: it had formed as one only
    agent.wait("rescaling")
    agent.wait("saved", membership=1)
    until(lambda: len(agent.of("ready")) == 2, "the ranks of the next world")
    client.send("rescale", **membership(2, "n1", "n2", "n3"))
    record = agent.wait("reformed")
    assert (record["membership"], record["step"]) == (2, 30)
    agent.wait("saved", membership=2)
    client.send("leave", grace_s=100.0)  # to the launcher alone, which is to tell its ranks
    assert agent.exit()["ended_by"] == "leave"
    main = agent.of("started")[0]["pid"]
    assert next((each["signal"], each["pids"]) for each in agent.of("signalled")) == ("SIGTERM", [main])
    assert "terminated" in agent.output()


def test_ranks_of_before_are_not_taken_for_a_membership_of_the_same_size(agent: Agent) -> None:
    dies = (
        'while (heard := hear())["type"] != "gone" and (heard.get("membership") != 2 or os.path.exists("go")): pass\n'
    )
    (agent.base / "rank.py").write_text(CHANNEL + ATTACH + 'say("ready", step=7)\n' + dies)
    agent.start(f"WORLDS = (2, 2)\n{LAUNCHER}".replace("ranks.wait()", RELEASED), plain=True, rescale="torchrun")
    client = agent.connect()
    client.send("rescale", **membership(1, "n1", "n2"))
    agent.wait("reformed", membership=1)
    old = agent.of("attached")[0]["pid"]
    client.send("rescale", **membership(2, "n1", "n3"))
    until(lambda: processes.process_of(old) is None, "the end of the old ranks")
    assert not agent.of("reformed", membership=2)
    (agent.base / "go").write_text("")
    agent.wait("reformed", membership=2)
    assert len(agent.of("attached")) == 2
    client.send("end", grace_s=0.0)
    agent.exit()


LIVES = 'say("ready", step=int(os.environ["WORLD_SIZE"]) * 10)\nwhile hear()["type"] != "gone": pass\n'


def test_ranks_that_torchrun_starts_in_a_smaller_world_have_lost_a_node(agent: Agent) -> None:
    (agent.base / "rank.py").write_text(CHANNEL + ATTACH + LIVES)
    agent.start(f"WORLDS = (3, 1)\n{LAUNCHER}", plain=True, rescale="torchrun")
    client = agent.connect()
    client.send("rescale", **membership(1, "n1", "n2", "n3"))
    assert agent.wait("reformed", membership=1)["step"] == 30
    os.kill(agent.of("attached")[0]["pid"], signal.SIGKILL)
    record = agent.wait("broken", membership=1)
    assert record["why"] == "torchrun goes on with 1 of 3 ranks"
    client.send("rescale", **membership(2, "n1"))  # they are what it takes: no other start is waited for
    assert agent.wait("reformed", membership=2)["step"] == 10
    assert len(agent.of("attached")) == 2
    assert [each["membership"] for each in agent.of("broken")] == [1]
    client.send("end", grace_s=0.0)
    agent.exit()


def test_a_world_that_is_on_its_way_to_the_membership_has_lost_nobody(agent: Agent) -> None:
    """Nodes come one after another, and leave as they were asked to; and the world may be larger than what is asked."""
    (agent.base / "rank.py").write_text(CHANNEL + ATTACH + LIVES)
    agent.start(f"WORLDS = (1, 2, 3, 2)\n{LAUNCHER}", plain=True, rescale="torchrun")
    client = agent.connect()
    client.send("rescale", **membership(1, "n1", "n2", "n3"))
    for step in (10, 20, 30):
        agent.wait("ready", step=step)
        if step == 30:
            agent.wait("reformed", membership=1)
            client.send("rescale", **membership(2, "n1", "n3"))
            agent.wait("rescaling", membership=2)
        os.kill(agent.of("attached")[-1]["pid"], signal.SIGKILL)
    assert agent.wait("reformed", membership=2)["step"] == 20
    client.send("end", grace_s=0.0)
    agent.exit()
    assert not agent.of("broken")


RELEASED = """ranks.wait()
    while not os.path.exists("go"):
        time.sleep(0.01)"""


@pytest.mark.parametrize("gains", [False, True])
def test_ranks_that_fail_again_and_again(agent: Agent, gains: bool) -> None:
    """torchrun would go on for ever: who gains a step each time may, who fails at the same one may not."""
    count = 'open("starts", "a").write("x")\nstarts = os.path.getsize("starts")\n'
    step = "starts" if gains else "1"
    fails = f'{count}say("ready", step=0)\nsay("progress", step={step})\nraise SystemExit(1)\n'
    (agent.base / "rank.py").write_text(CHANNEL + ATTACH + fails)
    agent.start(
        f'import os, time\nwhile not os.path.exists("go"): time.sleep(0.01)\nWORLDS = (1,) * 6 + (2,) * 8\n{LAUNCHER}',
        plain=True,
        rescale="torchrun",
    )
    client = agent.connect()
    client.send("rescale", **membership(1, "n1", "n2"))
    agent.wait("rescaling")
    (agent.base / "go").write_text("")
    if gains:
        until(lambda: len(agent.of("attached")) == 14, "all starts")
        client.send("end", grace_s=0.0)
        assert agent.exit()["ended_by"] == "end"
    else:
        record = agent.exit()
        assert (record["code"], record["signal"], record["ended_by"]) == (1, None, None)
        assert record["detail"] == "its ranks failed 4 times in a row at step 1: see its log"
        assert 6 + 4 < len(agent.of("attached")) < 14


# borders


@pytest.mark.parametrize(
    "changed",
    [{"membership": 0}, {"membership": True}, {"nodes": []}, {"nodes": ["n1", "n1"]}, {"ranks": [1]}, {"ranks": [0, 1]},
     {"nodes": "n1"}, {"address": 7}, {"nodes": ["n1", 2]}, {"ranks": None}],
)  # fmt: skip
def test_a_membership_that_makes_no_sense_is_malformed(changed: dict[str, Any]) -> None:
    body = membership(1, "n1", "n2") | changed
    with pytest.raises(MalformedPacket):
        packets.parse(packets.encode("rescale", **body))
    assert packets.parse(packets.encode("rescale", **membership(1, "n1", "n2"))) is not None


def test_a_claim_keeps_the_membership_that_its_ranks_wrote(tmp_path: Path) -> None:
    write_claim(str(tmp_path), 7, 2, "i:7:2:n1")
    claim = tmp_path / "claim.json"
    assert "membership" not in json.loads(claim.read_text())
    claim.write_text(json.dumps({"v": 1, "job": 7, "incarnation": 2, "membership": 3, "tag": "i:7:2:n1"}))
    write_claim(str(tmp_path), 7, 2, "i:7:2:n2")  # a node joins
    assert json.loads(claim.read_text())["membership"] == 3
    write_claim(str(tmp_path), 7, 3, "i:7:3:n1")  # a new incarnation counts anew
    assert "membership" not in json.loads(claim.read_text())
    assert os.stat(claim).st_mode & 0o777 == 0o600


def test_no_handler_needs_to_be_there_for_a_rescale(agent: Agent) -> None:
    agent.start(talks(), rescale="in-process")
    client = agent.connect()
    pid = agent.wait("attached")["pid"]
    client.send("rescale", **membership(1, "n1"))
    until(lambda: heard(agent, "rescale"), "the membership")
    assert not agent.of("signalled")
    os.kill(pid, signal.SIGKILL)
    assert agent.exit()["ended_by"] is None
