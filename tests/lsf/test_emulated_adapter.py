"""The LSF adapter over the commands of the emulated LSF, those of a relative without -o, and those of a launch node."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcdl.batch.adapter import TIMEOUT_S, Completed, PilotScript
from hpcdl.batch.command import run
from hpcdl.batch.system import BatchError
from hpcdl.core.model.pilot import BatchJob, BatchState, PilotSpec
from hpcdl.lsf.adapter import Lsf, LsfSettings
from tests.lsf.cluster import LsfCluster

MakeLsf = Callable[..., LsfCluster]
MARK = "hpcdl:ab:p7"
FOREVER = ("sleep", "600")


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[LsfCluster], Lsf]:
    """Makes this process a user of that cluster."""

    def entered(cluster: LsfCluster) -> Lsf:
        for name, value in cluster.environment().items():
            monkeypatch.setenv(name, value)
        return Lsf(now=time.time, pause=lambda seconds: None)

    return entered


def script(cluster: LsfCluster, *argv: str, options: tuple[str, ...] = (), notice_s: float = 60.0) -> PilotScript:
    return PilotScript(argv or FOREVER, MARK, "p7", str(cluster.home / "p7.log"), options, notice_s)


def output(cluster: LsfCluster) -> str:
    path = cluster.home / "p7.log"
    return path.read_text() if path.exists() else ""


def poll(lsf: Lsf, job: str) -> BatchJob:
    return lsf.poll([job])[job]


@pytest.mark.parametrize("style", ["lsf", "openlava"])
def test_the_life_of_a_pilot(make_lsf: MakeLsf, enter: Callable[[LsfCluster], Lsf], style: str) -> None:
    cluster = make_lsf(style=style)
    lsf = enter(cluster)
    assert lsf.marked("hpcdl:") == ()
    began = time.time()
    job = lsf.submit(PilotSpec(2, 1234.0, "killable", on=("h2", "h3")), script(cluster))
    cluster.reaches(job, "RUN")
    assert {each.mark: each.id for each in lsf.marked("hpcdl:ab:")} == {MARK: job}
    seen = poll(lsf, job)
    assert (seen.state, seen.mark, seen.nodes, seen.queue) == (BatchState.RUNNING, MARK, ("h2", "h3"), "killable")
    assert seen.started_at is not None
    assert seen.until is not None
    assert began - 1 <= seen.started_at <= time.time() + 1
    assert abs(seen.until - seen.started_at - 1200) < 3
    assert cluster.run("bstop", job).returncode == 0
    cluster.reaches(job, "USUSP")
    stopped = poll(lsf, job)
    assert (stopped.state, stopped.started_at) == (BatchState.SUSPENDED, seen.started_at)
    assert stopped.reason.startswith("suspended by its owner")
    assert cluster.run("bresume", job).returncode == 0
    cluster.reaches(job, "RUN")
    lsf.cancel([job])
    cluster.reaches(job, "EXIT")
    ended = poll(lsf, job)
    assert (ended.state, ended.preempted) == (BatchState.ENDED, False)
    assert "TERM_OWNER" in ended.reason or style == "openlava"
    lsf.cancel([job, "4242"])
    with pytest.raises(BatchError, match=f"job {job} has ended already"):
        lsf.signal(job, "TERM")
    assert poll(lsf, "4242").state is BatchState.MISSING
    assert lsf.confirm(["4242"])["4242"].state is BatchState.GONE
    assert lsf.confirm([job])[job].state is BatchState.ENDED


def test_signals_reach_the_pilot(lsf_cluster: LsfCluster, enter: Callable[[LsfCluster], Lsf]) -> None:
    lsf = enter(lsf_cluster)
    body = "trap 'echo got it; exit 3' USR1; echo ready; while :; do sleep 0.05; done"
    job = lsf.submit(PilotSpec(1, 600.0), script(lsf_cluster, "/bin/sh", "-c", body))
    lsf_cluster.until(lambda: "ready" in output(lsf_cluster), "the pilot to begin")
    lsf.signal(job, "SIGUSR1")
    lsf_cluster.reaches(job, "EXIT")
    assert "got it" in output(lsf_cluster)
    assert poll(lsf, job).code == 3


def test_what_is_forgotten_is_in_the_history(make_lsf: MakeLsf, enter: Callable[[LsfCluster], Lsf]) -> None:
    cluster = make_lsf(clean_s=0.1)
    lsf = enter(cluster)
    job = lsf.submit(PilotSpec(1, 600.0), script(cluster, "/bin/sh", "-c", "exit 5"))
    cluster.until(lambda: "is not found" in cluster.run("bjobs", job).stderr, "bjobs to forget it")
    assert poll(lsf, job).state is BatchState.MISSING
    ended = lsf.confirm([job])[job]
    assert (ended.state, ended.code, ended.nodes) == (BatchState.ENDED, 5, ("h1",))


@pytest.mark.parametrize("style", ["lsf", "openlava"])
def test_a_preempted_pilot_is_requeued_with_the_same_id(
    make_lsf: MakeLsf, enter: Callable[[LsfCluster], Lsf], style: str
) -> None:
    cluster = make_lsf(style=style, hosts=1)
    lsf = enter(cluster)
    job = lsf.submit(PilotSpec(1, 1200.0, "killable"), script(cluster))
    cluster.reaches(job, "RUN")
    first = poll(lsf, job)
    urgent = cluster.submit("sleep 100\n", "-q", "urgent", "-n", "4", "-W", "10")
    cluster.reaches(job, "PEND", "EXIT")
    waiting = poll(lsf, job)
    assert waiting.state in (BatchState.PENDING, BatchState.ENDED)
    assert waiting.nodes == () or waiting.preempted
    assert first.started_at is not None
    start = first.started_at
    cluster.until(lambda: time.time() > start + 1.1, "another second, for starts are told in seconds")
    cluster.run("bkill", urgent)
    if waiting.state is BatchState.PENDING:
        cluster.reaches(job, "RUN")
        again = poll(lsf, job)
        assert again.state is BatchState.RUNNING
        assert again.started_at is not None
        assert again.started_at > start


def test_the_run_limit_warns_and_ends_it(make_lsf: MakeLsf, enter: Callable[[LsfCluster], Lsf]) -> None:
    cluster = make_lsf(minute_s=2.0, limit_kill_s=2.0)  # time for a job on a loaded machine to say what it got
    lsf = enter(cluster)
    traps = (
        "import signal, time\n"
        "for name in ('URG', 'USR2'):\n"
        "    signal.signal(signal.Signals['SIG' + name], lambda *_, name=name: print('got', name, flush=True))\n"
        "print('ready', flush=True)\n"
        "while True:\n    time.sleep(0.01)\n"
    )
    job = lsf.submit(PilotSpec(1, 6000.0), script(cluster, sys.executable, "-SE", "-c", traps))
    cluster.until(lambda: "ready" in output(cluster), "the pilot to begin")
    cluster.shorten(job, 2.2)
    cluster.reaches(job, "EXIT")
    assert output(cluster).split("\n")[:3] == ["ready", "got URG", "got USR2"]
    ended = poll(lsf, job)
    assert ended.reason.startswith("TERM_RUNLIMIT")
    assert not ended.preempted


def test_holes_are_the_windows_before_somebody_elses_job(
    lsf_cluster: LsfCluster, enter: Callable[[LsfCluster], Lsf]
) -> None:
    lsf = enter(lsf_cluster)
    (hole,) = lsf.holes(time.time(), ())
    assert (hole.nodes, hole.until, hole.gpus, hole.queue) == (("h1", "h2", "h3", "h4"), None, 4, "normal")
    assert hole.kind.startswith("teslav100")
    lsf_cluster.reaches(lsf_cluster.submit("sleep 100\n", "-W", "30", "-n", "7"), "RUN")
    lsf_cluster.submit("true\n", "-n", "16", "-W", "10", LSFEMU_USER="eve")
    lsf_cluster.until(lambda: lsf_cluster.state().reservations, "the plan of the big job")
    now = time.time()
    (hole,) = lsf.holes(now, ())
    assert hole.nodes == ("h3", "h4"), "a slot that is free on a used node makes no hole"
    assert hole.until is not None
    assert 1700 < hole.until - now <= 1800
    job = lsf.submit(PilotSpec(2, 1600.0, hole.queue, on=hole.nodes), script(lsf_cluster))
    lsf_cluster.reaches(job, "RUN")
    assert poll(lsf, job).nodes == ("h3", "h4")
    assert lsf.holes(time.time(), (job,)) == ()


def test_holes_of_a_relative_are_idle_hosts(make_lsf: MakeLsf, enter: Callable[[LsfCluster], Lsf]) -> None:
    cluster = make_lsf(style="openlava")
    lsf = enter(cluster)
    cluster.reaches(cluster.submit("sleep 100\n", "-n", "1"), "RUN")
    cluster.close_hosts("h4")
    (hole,) = lsf.holes(time.time(), ())
    assert (hole.nodes, hole.until, hole.queue) == (("h2", "h3"), None, "killable")
    said = "\n".join(lsf.capabilities().missing)
    assert "no bslots" in said
    assert "bjobs -o and -json are refused" in said


def test_capabilities(lsf_cluster: LsfCluster, enter: Callable[[LsfCluster], Lsf]) -> None:
    told = enter(lsf_cluster).capabilities()
    assert told.version.startswith("IBM Spectrum LSF")
    assert told.json
    assert told.queues == ("urgent", "normal", "low", "killable", "background")
    assert told.limits["queue background"].startswith("interruptible backfill")
    assert "killable: preempted by urgent, ended" in told.preemption
    assert told.limits["jobstat"].endswith("0 of 4 nodes")
    assert told.missing == ()


@pytest.mark.parametrize("spec, error, again", [
    (PilotSpec(1, 600.0, "nosuch"), "No such queue. Job not submitted", False),
    (PilotSpec(99, 600.0), "Too many processors requested", False),
    (PilotSpec(1, 99 * 3600.0, "background"), "Cannot exceed queue's hard limit", False),
])  # fmt: skip
def test_refusals_in_lsfs_words(
    lsf_cluster: LsfCluster, enter: Callable[[LsfCluster], Lsf], spec: PilotSpec, error: str, again: bool
) -> None:
    with pytest.raises(BatchError, match=error) as told:
        enter(lsf_cluster).submit(spec, script(lsf_cluster))
    assert (told.value.again, told.value.away) == (again, False)
    assert len(lsf_cluster.state().jobs) == 0


def test_trouble(lsf_cluster: LsfCluster, enter: Callable[[LsfCluster], Lsf]) -> None:
    lsf = enter(lsf_cluster)
    lsf_cluster.faults("bsub refused x2", "bsub banner", "* wait 1", "* mail")
    job = lsf.submit(PilotSpec(1, 600.0), script(lsf_cluster, options=("-P", "cpp")))
    assert [each.id for each in lsf_cluster.state().jobs] == [int(job)]
    lsf_cluster.reaches(job, "RUN")
    assert poll(lsf, job).nodes == ("h1",)
    lsf_cluster.faults("bjobs empty x2")
    assert poll(lsf, job).state is BatchState.RUNNING
    lsf_cluster.faults("bjobs empty")
    assert poll(lsf, job).state is BatchState.UNKNOWN
    lsf_cluster.faults(f"bjobs lost {job}")
    assert poll(lsf, job).state is BatchState.MISSING
    assert lsf.confirm([job])[job].state is BatchState.RUNNING, "bhist knows it"
    lsf_cluster.faults("* away")
    for ask in (lambda: poll(lsf, job), lambda: lsf.holes(time.time(), ()), lambda: lsf.cancel([job])):
        with pytest.raises(BatchError, match="Please wait") as error:
            ask()
        assert error.value.away
    lsf_cluster.faults()
    assert poll(lsf, job).state is BatchState.RUNNING


def test_a_reply_that_is_lost_is_no_second_pilot(lsf_cluster: LsfCluster, enter: Callable[[LsfCluster], Lsf]) -> None:
    lsf = enter(lsf_cluster)

    def silent(argv: list[str], timeout_s: float = TIMEOUT_S, **kwargs: str) -> Completed:
        done = run(argv, timeout_s, stdin=kwargs.get("stdin", ""))
        return Completed("", "", 0) if argv[0] == "bsub" and done.code == 0 else done

    deaf = Lsf(silent, now=time.time, pause=lambda seconds: None)  # type: ignore[arg-type]
    job = deaf.submit(PilotSpec(1, 600.0), script(lsf_cluster))
    assert [each.id for each in lsf_cluster.state().jobs] == [int(job)]
    assert poll(lsf, job).mark == MARK


def test_a_hanging_lsf_is_away(lsf_cluster: LsfCluster, enter: Callable[[LsfCluster], Lsf]) -> None:
    enter(lsf_cluster)
    lsf_cluster.faults("bjobs hang")
    hasty = Lsf(lambda argv, timeout_s=0.3, **_: run(argv, 0.3), now=time.time)
    with pytest.raises(BatchError, match=r"bjobs has not answered within 0\.3 s") as error:
        hasty.poll(["1"])
    assert error.value.away


IN_THE_JOB = """
import os, subprocess, sys, time
from hpcdl.lsf.adapter import Lsf
lsf = Lsf(now=time.time)
found = lsf.allocation(os.environ)
print("here", found.id, found.nodes, found.gpus, repr(found.here), round(found.until - found.started_at), flush=True)
say = ("/bin/sh", "-c", "echo agent on $HOSTNAME with $CUDA_VISIBLE_DEVICES; sleep 0.5")
each = [subprocess.Popen(lsf.launch(found, node, say)) for node in found.nodes]
print("codes", [one.wait() for one in each], flush=True)
"""


@pytest.mark.parametrize("settings, here, by", [
    ({}, "h1", LsfSettings()),
    ({"launch_node": "batch1", "node_jobs": True, "script_file": True}, "",
     LsfSettings("file", "nodes", "jsrun", "CN")),
    ({"launch_node": "batch1", "node_jobs": True}, "", LsfSettings()),
])  # fmt: skip
def test_inside_an_allocation(
    make_lsf: MakeLsf,
    enter: Callable[[LsfCluster], Lsf],
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    here: str,
    by: LsfSettings,
) -> None:
    cluster = make_lsf(**settings)
    enter(cluster)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    lsf = Lsf(now=time.time, ways=by, pause=lambda seconds: None)
    job = lsf.submit(PilotSpec(2, 600.0), script(cluster, sys.executable, "-c", IN_THE_JOB))
    cluster.reaches(job, "DONE", "EXIT")
    said = output(cluster)
    assert f"here {job} ('h1', 'h2') 4 {here!r} 600" in said
    assert "codes [0, 0]" in said
    assert sorted(line for line in said.splitlines() if line.startswith("agent")) == [
        "agent on h1 with 0,1,2,3",
        "agent on h2 with 0,1,2,3",
    ]
    assert os.environ["LSFEMU_HOME"] == str(cluster.home)


def test_a_pilot_of_a_daemon_inside_an_allocation(
    make_lsf: MakeLsf, enter: Callable[[LsfCluster], Lsf], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_lsf(style="openlava")
    lsf = enter(cluster)
    for name, value in (("LSB_JOBID", "7"), ("LSB_MCPU_HOSTS", "h4 4"), ("CUDA_VISIBLE_DEVICES", "7")):
        monkeypatch.setenv(name, value)
    job = lsf.submit(PilotSpec(1, 600.0), script(cluster, "/bin/sh", "-c", "env"))
    cluster.reaches(job, "DONE")
    said = output(cluster).splitlines()
    assert f"LSB_JOBID={job}" in said
    assert "LSB_MCPU_HOSTS=h1 4" in said
    assert "CUDA_VISIBLE_DEVICES=7" not in said


@pytest.mark.parametrize("style", ["lsf", "openlava"])
def test_what_idles_is_what_runs_nothing(make_lsf: MakeLsf, enter: Callable[[LsfCluster], Lsf], style: str) -> None:
    cluster = make_lsf(style=style)
    lsf = enter(cluster)
    before = lsf.idle_nodes()
    assert before.nodes == len(before.names) > 2
    job = lsf.submit(PilotSpec(2, 1200.0, "killable", on=("h2", "h3")), script(cluster))
    cluster.reaches(job, "RUN")
    assert before.names - lsf.idle_nodes().names == {"h2", "h3"}
    assert cluster.run("bstop", job).returncode == 0
    cluster.reaches(job, "USUSP")
    assert before.names - lsf.idle_nodes().names == {"h2", "h3"}
    lsf.cancel([job])
    cluster.reaches(job, "EXIT")
    cluster.until(lambda: lsf.idle_nodes() == before, "its hosts to idle again")
