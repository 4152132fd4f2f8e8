"""Suspends, ends and absences of real trainers, and their escalation."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.agent.conftest import ATTACH, Agent, stopped
from tests.support.waiting import until

SUSPENDABLE = (
    ATTACH
    + """
say("ready", step=0)
step = 0
while not asked:
    step += 1
    time.sleep(0.01)
say("saving", step=step)
saved(step)
os.kill(os.getppid(), signal.SIGUSR1)
"""
)
SAYS_LOOP = ATTACH.replace("attach()", "attach(says_loop=True)")  # as hpcdl.trainer does
DEAF = ATTACH + "say('ready', step=0)\nsignal.signal(15, lambda n, f: print('TERM'))\nwhile True: time.sleep(0.01)"


def signals(agent: Agent) -> list[str]:
    return [each["signal"] for each in agent.of("signalled")]


def test_suspend_is_a_handshake(agent: Agent) -> None:
    agent.start(SUSPENDABLE)
    pid = agent.wait("attached")["pid"]
    agent.wait("ready")
    agent.connect().send("suspend", grace_s=30.0)
    record = agent.exit()
    assert (record["code"], record["signal"], record["ended_by"], record["attached"]) == (0, None, "suspend", True)
    assert agent.of("suspending", by="daemon", grace_s=30.0)
    assert agent.of("signalled") == agent.of("signalled", signal="SIGTSTP", pids=[pid], handled=[pid])
    saved = agent.wait("saved", final=True)
    assert record["step"] == saved["step"]


def test_the_message_alone_is_enough(agent: Agent) -> None:
    agent.start("channel = connect()\nattach(handler=False)\nprint(hear()['grace_s'])\nsaved(1)")
    agent.wait("attached", handler=False)
    agent.connect().send("suspend", grace_s=30.0, by="agent")
    assert agent.exit()["ended_by"] == "suspend"
    assert agent.of("suspending", by="agent")
    assert 0 < float(agent.output()) <= 30
    assert signals(agent) == []  # without a handler the signal would be lost, or stop it


def test_a_suspend_repeated_is_one(agent: Agent) -> None:
    agent.start(ATTACH + "while True:\n message = hear()\n print(message)\n time.sleep(0.5); saved(3); break")
    agent.wait("attached")
    client = agent.connect()
    for grace in (30.0, 60.0, 40.0):
        client.send("suspend", grace_s=grace)
    assert agent.exit()["ended_by"] == "suspend"
    assert [each["grace_s"] for each in agent.of("suspending")] == [30.0]
    assert signals(agent) == ["SIGTSTP"]


def test_a_shorter_grace_counts_from_then(agent: Agent) -> None:
    agent.start(DEAF)
    agent.wait("ready")
    client = agent.connect()
    client.send("suspend", grace_s=300.0)
    agent.wait("suspending", grace_s=300.0)
    client.send("suspend", grace_s=0.5)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGKILL", "suspend")


def test_a_trainer_that_does_not_answer(agent: Agent) -> None:
    agent.start(DEAF)
    agent.wait("ready")
    agent.connect().send("suspend", grace_s=5.0)
    record = agent.exit()
    assert (record["code"], record["signal"], record["ended_by"]) == (None, "SIGKILL", "suspend")
    assert signals(agent) == ["SIGTSTP", "SIGTSTP", "SIGTERM", "SIGKILL"]
    began = agent.of("suspending")[0]["t"]
    times = [each["t"] - began for each in agent.of("signalled")]
    assert times == sorted(times)
    assert all(due <= time < due + 60 for due, time in zip((0, 5 / 3, 4, 5), times, strict=True))
    assert "TERM" in agent.output()


SOON = """
import sys
from hpcdl.agent.supervisor import supervisor, termination
termination.TERMINATE_AFTER = 0.1
sys.exit(supervisor.main(sys.argv[1:]))
"""


def test_a_save_under_way_is_not_disturbed(agent: Agent) -> None:
    """It goes on when SIGTERM would come, after 6 s, and has its whole grace, however slow this machine is."""
    agent.program = ("-c", SOON)
    agent.start(
        ATTACH
        + """
signal.signal(15, lambda n, f: print("TERM"))
hear()
say("saving", step=4)
end = time.monotonic() + 6.6
while time.monotonic() < end: time.sleep(0.01)
saved(4)
"""
    )
    agent.wait("attached")
    agent.connect().send("suspend", grace_s=60.0)
    record = agent.exit()
    assert (record["code"], record["ended_by"], record["step"]) == (0, "suspend", 4)
    assert signals(agent) == ["SIGTSTP"]
    assert agent.output() == ""


@pytest.mark.parametrize("preset", ["lightning", "submitit", "hf", "none"])
def test_without_a_handler_it_is_sigterm_at_once(agent: Agent, preset: str) -> None:
    agent.start("print('up')\nwhile True: time.sleep(0.01)", signal=preset)
    agent.printed("up")
    agent.connect().send("suspend", grace_s=60.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGTERM", "suspend")
    assert signals(agent) == ["SIGTERM"]
    assert agent.of("signalled")[0]["t"] - agent.of("suspending")[0]["t"] < 20  # a third of the grace


@pytest.mark.parametrize("preset,name", [("lightning", "SIGUSR1"), ("submitit", "SIGUSR2"), ("hf", "SIGTERM")])
def test_presets_reach_a_handler_in_any_process(agent: Agent, preset: str, name: str) -> None:
    agent.start(
        f"""
import subprocess
if len(sys.argv) == 1:  # a launcher, which handles nothing
    sys.exit(subprocess.call([sys.executable, "-u", "-S", __file__, "rank"]))
signal.signal(signal.{name}, lambda n, f: asked.append(n))
print("up", os.getpid())
while not asked: time.sleep(0.01)
print("asked")
""",
        signal=preset,
    )
    agent.printed("up ")
    agent.connect().send("suspend", grace_s=60.0)
    assert agent.exit()["ended_by"] == "suspend"
    pid = int(agent.output().split()[1])
    assert agent.of("signalled") == agent.of("signalled", signal=name, pids=[pid], handled=[pid])
    assert "asked" in agent.output()


@pytest.mark.parametrize("attached", [False, True])
def test_a_trainer_that_has_not_begun_to_train_is_ended_at_once(agent: Agent, attached: bool) -> None:
    imports = "signal.signal(15, signal.SIG_DFL); print('imports')\nwhile True: time.sleep(0.01)"
    agent.start((SAYS_LOOP if attached else "") + imports)
    agent.printed("imports")
    agent.connect().send("suspend", grace_s=3600.0)
    record = agent.exit()  # an hour of grace, and nothing to use it for
    assert (record["signal"], record["ended_by"], record["attached"]) == ("SIGTERM", "suspend", attached)
    assert signals(agent) == ["SIGTERM"]
    assert not agent.of("saved")


def test_it_is_killed_soon_where_it_does_not_heed_sigterm(agent: Agent) -> None:
    agent.start(SAYS_LOOP + "signal.signal(15, signal.SIG_IGN); print('imports')\nwhile True: time.sleep(0.01)")
    agent.printed("imports")
    agent.connect().send("suspend", grace_s=3600.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGKILL", "suspend")


@pytest.mark.parametrize("says", ["say('ready', step=7)", "say('loop')", "say('progress', step=7)"])
def test_one_that_trains_is_asked(agent: Agent, says: str) -> None:
    agent.start(SAYS_LOOP + says + "\nprint('trains')\nwhile not asked: time.sleep(0.01)\nsaved(7)")
    agent.printed("trains")
    agent.connect().send("suspend", grace_s=60.0)
    assert agent.exit()["code"] == 0
    assert signals(agent) == ["SIGTSTP"]
    assert agent.of("saved", final=True)


def test_an_older_library_says_nothing_of_its_loop_and_is_asked(agent: Agent) -> None:
    agent.start(ATTACH + "print('trains')\nwhile not asked: time.sleep(0.01)\nsaved(7)")
    agent.printed("trains")
    agent.connect().send("suspend", grace_s=60.0)
    assert agent.exit()["code"] == 0
    assert signals(agent) == ["SIGTSTP"]


def test_what_may_save_at_sigterm_by_itself_has_its_grace(agent: Agent) -> None:
    """Not one of hpcdl.trainer's, so nobody knows what it has to save."""
    code = "signal.signal(15, lambda n, f: asked.append(n)); print('up')\nwhile not asked: time.sleep(0.01)\n"
    agent.start(code + "time.sleep(6); print('saved')")
    agent.printed("up")
    agent.connect().send("suspend", grace_s=60.0)
    assert agent.exit()["code"] == 0
    assert "saved" in agent.output()


def test_a_stopped_trainer_is_continued_to_be_suspended(agent: Agent) -> None:
    agent.start(SUSPENDABLE)
    pid = agent.wait("attached")["pid"]
    agent.wait("ready")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stopped(pid), "the stop")
    agent.connect().send("suspend", grace_s=30.0)
    record = agent.exit()
    assert (record["code"], record["ended_by"]) == (0, "suspend")
    assert signals(agent)[:2] == ["SIGCONT", "SIGTSTP"]
    assert agent.of("saved", final=True)


def test_a_trainer_that_stays_stopped_is_continued_with_a_note(agent: Agent) -> None:
    agent.start(ATTACH + "while not os.path.exists('go'): time.sleep(0.01)", stopped_s=1.0)
    pid = agent.wait("attached")["pid"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stopped(pid), "the stop")
    note = agent.wait("note")
    assert note["text"] == f"stopped for 1 s, continued: process {pid}"
    (agent.base / "go").touch()
    assert agent.exit()["code"] == 0


def test_several_ranks_and_their_launcher(agent: Agent) -> None:
    agent.start(
        """
import subprocess
if len(sys.argv) == 1:
    ranks = [subprocess.Popen([sys.executable, "-u", "-S", __file__, str(n)]) for n in range(2)]
    sys.exit(max(rank.wait() for rank in ranks))
rank = int(sys.argv[1])
signal.signal(signal.SIGTSTP, lambda n, f: asked.append(n))
channel = connect()
attach(rank=rank)
say("ready", step=rank)
say("progress", step=10 + rank, total=None, samples=None)
hear()
while not asked: time.sleep(0.01)
saved(50 + rank)
"""
    )
    until(lambda: len(agent.of("attached")) == 2, "both ranks")
    ranks = sorted(each["pid"] for each in agent.of("attached"))
    agent.connect().send("suspend", grace_s=30.0)
    record = agent.exit()
    assert (record["code"], record["ended_by"]) == (0, "suspend")
    assert [each["step"] for each in agent.of("saved")] == [50]
    assert sorted(pid for each in agent.of("signalled") for pid in each["pids"]) == ranks


def test_a_rank_whose_launcher_is_killed_still_saves(agent: Agent) -> None:
    agent.start(
        """
import subprocess
if len(sys.argv) == 1:
    sys.exit(subprocess.call([sys.executable, "-u", "-S", __file__, "rank"]))
signal.signal(signal.SIGTSTP, lambda n, f: asked.append(n))
channel = connect()
attach()
hear()
say("saving", step=6)
print("saving")
time.sleep(2.5)
saved(6)
"""
    )
    agent.wait("attached")
    agent.connect().send("suspend", grace_s=30.0)
    agent.printed("saving")
    os.kill(agent.of("started")[0]["pid"], signal.SIGKILL)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGKILL", "suspend")
    assert agent.of("saved", step=6, final=True)


def test_end_is_sigterm_then_sigkill(agent: Agent) -> None:
    agent.start(DEAF)
    agent.wait("ready")
    agent.connect().send("end", grace_s=1.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"], record["step"]) == ("SIGKILL", "end", 0)
    assert signals(agent) == ["SIGTERM", "SIGKILL"]
    assert not agent.of("suspending")


def test_end_replaces_suspend(agent: Agent) -> None:
    agent.start(ATTACH + "say('ready', step=0)\nwhile True: time.sleep(0.01)")
    agent.wait("ready")
    client = agent.connect()
    client.send("suspend", grace_s=60.0)
    client.send("end", grace_s=60.0)
    client.send("suspend", grace_s=60.0)
    record = agent.exit()
    assert (record["signal"], record["ended_by"]) == ("SIGTERM", "end")
    assert signals(agent) == ["SIGTSTP", "SIGTERM"]


def test_without_an_agent_it_is_suspended(agent: Agent) -> None:
    agent.start(SUSPENDABLE, agent_absence_s=4.0)
    client = agent.connect()
    agent.wait("ready")
    connected = agent.records()[-1]["t"]
    until(lambda: client.poll(), "a record")
    client.close()
    record = agent.exit()
    assert (record["code"], record["ended_by"]) == (0, "absence")
    suspending = agent.wait("suspending", by="absence")
    assert suspending["t"] - connected > 3.5
    assert agent.of("saved", final=True)


LEFT = "say('left')\n"


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("deaf", [False, True])
def test_a_trainer_that_is_done_and_never_ends(agent: Agent, deaf: bool, left: bool) -> None:
    """What hangs in its script's end failed to come to it; what hangs on its way out is done."""
    prepare = "signal.signal(15, lambda n, f: None)\n" if deaf else ""
    end = LEFT if left else ""
    agent.start(
        ATTACH + prepare + f"say('ready', step=0)\nsaved(3)\nsay('done', step=3)\n{end}while True: time.sleep(0.2)",
        linger_s=0.4,
        grace_s=0.5 if deaf else 60.0,
    )
    record = agent.exit()
    assert (record["code"], record["signal"], record["ended_by"]) == (0 if left else 1, None, None)
    assert (record["done"], record["step"], record["left"], record["still"]) == (True, 3, left, not left)
    assert "still" in record["detail"]
    assert signals(agent)[-1] == ("SIGKILL" if deaf else "SIGTERM")
    assert agent.of("note", text="done, and still for 0.4 s without an end: the trainer is ended")
    assert agent.of("suspending") == []


def test_sigterm_to_the_supervisor_suspends(agent: Agent) -> None:
    agent.start(SUSPENDABLE)
    agent.wait("ready")
    assert agent.supervisor is not None
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGTERM):
        agent.supervisor.send_signal(number)
    assert agent.exit()["ended_by"] == "suspend"
    assert agent.of("suspending", by="agent")
    assert agent.of("saved", final=True)


def test_a_suspend_at_the_gate(agent: Agent) -> None:
    agent.start(ATTACH + "say('gate', warm_s=0, cuda=False)\nprint(hear()['type'])", gate=True)
    agent.wait("gate")
    client = agent.connect()
    client.send("suspend", grace_s=30.0)
    client.send("open", gpu_env={})  # too late
    assert agent.exit()["ended_by"] == "suspend"
    assert agent.output() == "suspend\n"


def test_what_was_sent_before_the_death_is_heard(agent: Agent) -> None:
    agent.start(ATTACH + "say('saving', step=8)\nsaved(8)\nos.kill(os.getpid(), signal.SIGKILL)")
    record = agent.exit()
    assert (record["signal"], record["step"]) == ("SIGKILL", 8)
    assert agent.of("saved", step=8)


EXPORTS = """
print("step 300/300", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
print("exported", flush=True)
"""


@pytest.mark.parametrize("says", [True, False])
def test_what_has_done_all_its_steps_is_left_to_end_by_itself(agent: Agent, says: bool) -> None:
    """It said `done`, or its output has the last of the steps that its user said: no signal ends what it exports."""
    begin = f"{ATTACH}say('ready', step=0)\nsay('done', step=300)\n" if says else "import os, time\n"
    order = {} if says else {"progress_regex": r"step (\d+)", "steps": 300}
    agent.start(begin + EXPORTS, plain=not says, **order)
    agent.printed("step 300/300\n")  # an unbuffered print writes the end of its line apart
    agent.connect().send("suspend", grace_s=600.0)
    agent.wait("suspending")
    assert [each for each in agent.of("note") if "all of its steps are done" in each["text"]]
    assert signals(agent) == []
    (agent.base / "go").touch()
    record = agent.exit()
    assert (record["code"], record["ended_by"], record["done"]) == (0, "suspend", True)
    assert record["by_itself"] is says  # of one that never attached that is not known
    assert agent.output().endswith("exported\n")


@pytest.mark.parametrize("saves", [True, False])
def test_what_a_program_saved_by_itself_is_looked_for(agent: Agent, saves: bool) -> None:
    script = f"""
import os, signal, sys, time
def end(number, frame):
    if {saves}:
        os.mkdir("out/checkpoint-400")
    sys.exit(124)
signal.signal(signal.SIGTERM, end)
os.makedirs("out/checkpoint-200")
print("trains", flush=True)
while True:
    time.sleep(0.02)
"""
    older = agent.base / "out" / "checkpoint-100"
    older.mkdir(parents=True)
    os.utime(older, (1, 1))
    agent.start(script, plain=True, signal="hf", resumes="out/checkpoint-*")
    agent.printed("trains")
    if not saves:
        past = time.time() - 10  # before it was asked to go
        os.utime(agent.base / "out" / "checkpoint-200", (past, past))
    agent.connect().send("suspend", grace_s=60.0)
    record = agent.exit()
    assert (record["code"], record["kept"]) == (124, "checkpoint-400" if saves else "")


@pytest.mark.parametrize(("end", "by_itself"), [("sys.exit(3)", True), ("os.kill(os.getpid(), 9)", False)])
def test_an_error_while_a_suspend_is_pending_is_told_from_what_ends_it(agent: Agent, end: str, by_itself: bool) -> None:
    agent.start(f"{ATTACH}import sys\nsay('ready', step=0)\n{EXPORTS}{end}\n")
    agent.printed("step 300/300\n")
    agent.connect().send("suspend", grace_s=600.0)
    agent.wait("suspending")
    (agent.base / "go").touch()
    record = agent.exit()
    assert (record["ended_by"], record["by_itself"]) == ("suspend", by_itself)


@pytest.mark.parametrize(("batch", "left"), [(False, False), (True, True)])
def test_who_leaves_its_script_after_a_sigterm_may_have_cut_it_short(agent: Agent, batch: bool, left: bool) -> None:
    end = (
        "stop = []\nsignal.signal(15, lambda *given: stop.append(1))\nsay('done', step=300)\nprint('on', flush=True)\n"
    )
    agent.start(f"{ATTACH}{end}while not stop: time.sleep(0.01)\n{LEFT}", batch=batch)
    agent.printed("on\n")
    agent.connect().send("suspend", grace_s=1.0)
    record = agent.exit()
    assert (record["code"], record["left"], record["by_itself"]) == (0, left, False)


RUN = """
def run(number, end):
    global channel
    if not (pid := os.fork()):
        channel = connect()
        attach(number)
        say('ready', step=0)
        say('done', step=3)
        exec(end)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    time.sleep(0.5)
    os.waitpid(pid, 0)
KILLED = "os.kill(os.getpid(), 9)"
"""


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ("run(0, KILLED)", 137),
        ("run(0, '')", 0),
        ("run(0, KILLED); run(0, '')", 0),  # started again
        ("run(1, KILLED); run(0, \"say('left')\")", 0),  # the others went on without it
    ],
)
def test_what_started_a_rank_does_not_hide_that_it_was_killed(agent: Agent, runs: str, code: int) -> None:
    agent.start(f"{RUN}{runs}\n")
    record = agent.exit()
    assert (record["code"], record["signal"], record["done"]) == (code, None, True)
