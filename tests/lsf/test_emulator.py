"""The emulated LSF itself: lives of jobs, preemption, signals, windows, faults."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lsf.cluster import ROOT, LsfCluster, hosts_of

MakeLsf = Callable[..., LsfCluster]

TO_SPEAK_S = 2.0
"""Between two signals, for a job on a loaded machine to say that it got the first one."""

TRAPS = f"""#!{sys.executable} -SE
import signal
for name in ("INT", "TERM", "USR1", "USR2", "TSTP", "CONT", "URG"):
    signal.signal(signal.Signals["SIG" + name], lambda _number, _frame, name=name: print("got", name, flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""


def gone(pid: int) -> bool:
    """Whether a process has ended (it may still be waited for)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def traps(lsf: LsfCluster, *options: str, **env: str) -> str:
    """A job that tells which signals it got; it has begun."""
    key = lsf.submit(TRAPS, *options, **env)
    lsf.until(lambda: "ready" in lsf.output(key), f"{key} to begin")
    return key


def heard(lsf: LsfCluster, key: str) -> list[str]:
    """The signals that a job of `traps` got, in order."""
    return [line.removeprefix("got ") for line in lsf.output(key).splitlines() if line.startswith("got ")]


def until_there(path: Path) -> str:
    """Lines of a script that wait for this file."""
    return f"until [ -e {path} ]; do sleep 0.05; done\n"


# --- a life


def test_the_life_of_a_job(lsf_cluster: LsfCluster, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"#!/bin/bash\n#BSUB -J one\n#BSUB -W 10\n#BSUB -gpu num=2\nenv\n{until_there(go)}exit 3\n"
    done = lsf_cluster.run("bsub", "-o", str(tmp_path / "out.%J"), stdin=script)
    assert (done.stdout, done.returncode) == ("Job <101> is submitted to default queue <normal>.\n", 0)
    assert hosts_of(lsf_cluster.reaches("101", "RUN")) == ["h1"]
    row = lsf_cluster.run("bjobs", "-noheader", "-o", "jobid stat queue exec_host runtimelimit delimiter='^'").stdout
    assert row == "101^RUN^normal^h1^10.0\n"
    go.touch()
    job = lsf_cluster.reaches("101", "EXIT")
    assert job.code == 3
    assert lsf_cluster.run("bjobs", "101", "-noheader", "-o", "stat exit_code delimiter='|'").stdout == "EXIT|3\n"
    output = (tmp_path / "out.101").read_text()
    for line in ("LSB_JOBID=101", "LSB_JOBNAME=one", "LSB_QUEUE=normal", "LSB_MCPU_HOSTS=h1 1", "LSB_HOSTS=h1",
                 "CUDA_VISIBLE_DEVICES=0,1", "HOSTNAME=h1", "LSB_BATCH_JID=101"):  # fmt: skip
        assert line in output.splitlines()
    assert "Exited with exit code 3." in output
    assert "Exited with exit code 3" in lsf_cluster.run("bhist", "-l", "101").stdout


def test_an_allocation_of_two_hosts_and_blaunch(lsf_cluster: LsfCluster) -> None:
    say = 'sh -c "echo on \\$HOSTNAME with \\$CUDA_VISIBLE_DEVICES; exit 5"'
    script = f"cat $LSB_DJOB_HOSTFILE\nblaunch h2 {say}\necho $?\nblaunch h3 true\n"
    key = lsf_cluster.submit(script, "-n", "8", "-R", "span[ptile=4]", "-x")
    assert hosts_of(lsf_cluster.reaches(key, "EXIT")) == ["h1", "h2"]
    lines = lsf_cluster.output(key).splitlines()
    assert lines[:8] == ["h1"] * 4 + ["h2"] * 4
    assert lines[8:10] == ["on h2 with 0,1,2,3", "5"]
    assert "h3 is not allocated" in lines[10]
    assert lsf_cluster.run("blaunch", "h1", "true").returncode == 255


def test_a_launch_node_and_jsrun(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(launch_node="batch1", node_jobs=True, slots=8)
    step = 'sh -c "echo $JSM_NAMESPACE_RANK/$JSM_NAMESPACE_SIZE $HOSTNAME [$CUDA_VISIBLE_DEVICES]"'.replace("$", "\\$")
    script = f"echo at $HOSTNAME $LSB_MCPU_HOSTS\njsrun -n4 -r2 -a1 -g2 -c4 {step}\njsrun -n3 -r1 true\n"
    key = lsf.submit(script, "-nnodes", "2")
    assert hosts_of(lsf.reaches(key, "DONE", "EXIT")) == ["batch1", "h1", "h2"]
    first, *ranks, error = lsf.output(key).splitlines()
    assert first == "at batch1 batch1 1 h1 8 h2 8"
    assert sorted(ranks) == ["0/4 h1 [0,1]", "1/4 h1 [2,3]", "2/4 h2 [0,1]", "3/4 h2 [2,3]"]
    assert "cannot be met" in error


def test_jsrun_steps_wait_for_each_other(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(launch_node="batch1", node_jobs=True)
    step = "jsrun -n1 -a1 -g4 -cALL_CPUS sh -c 'echo begin; sleep 0.3; echo end'"
    key = lsf.submit(f"{step} & {step} & wait\n", "-nnodes", "1")
    lsf.reaches(key, "DONE")
    assert lsf.output(key).split() == ["begin", "end", "begin", "end"]


def test_an_array_and_a_dependency(lsf_cluster: LsfCluster) -> None:
    lsf_cluster.submit("echo element $LSB_JOBINDEX\n", "-J", "many[1-2]")
    later = lsf_cluster.submit("true\n", "-w", "done(101)", "-J", "later")
    never = lsf_cluster.submit("true\n", "-w", 'exit("later")')
    lsf_cluster.reaches(later, "DONE")
    assert {lsf_cluster.output(f"101[{index}]") for index in (1, 2)} == {"element 1\n", "element 2\n"}
    assert lsf_cluster.job(later).started >= max(lsf_cluster.job(f"101[{index}]").ended for index in (1, 2))
    assert lsf_cluster.job(never).pend_reason == "Job dependency condition not satisfied;"


# --- signals


def test_bkill_of_a_serial_job_goes_through_int_term_and_kill(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(terminate_s=TO_SPEAK_S)
    key = traps(lsf)
    done = lsf.run("bkill", key)
    assert done.stdout == f"Job <{key}> is being terminated\n"
    job = lsf.reaches(key, "EXIT")
    assert heard(lsf, key) == ["INT", "TERM"]
    assert (job.code, job.reason) == (137, "TERM_OWNER: job killed by owner")
    again = lsf.run("bkill", key)
    assert (again.stderr, again.returncode) == (f"Job <{key}>: Job has already finished\n", 255)


def test_bkill_of_a_parallel_job_is_only_kill_unless_told_otherwise(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(terminate_s=TO_SPEAK_S)
    hard = traps(lsf, "-n", "2")
    lsf.run("bkill", hard)
    assert lsf.reaches(hard, "EXIT").code == 137
    assert "got" not in lsf.output(hard)
    lsf.configure(sequential_signal=True)
    soft = traps(lsf, "-n", "2")
    lsf.run("bkill", soft)
    lsf.reaches(soft, "EXIT")
    assert heard(lsf, soft) == ["INT", "TERM"]


def test_signals_reach_what_left_the_jobs_session_and_nothing_is_left_behind(lsf_cluster: LsfCluster) -> None:
    key = lsf_cluster.submit(
        "setsid bash -c 'trap \"echo heard\" USR1; echo pid $$; while :; do sleep 0.05; done' &\nwait\n"
    )
    lsf_cluster.until(lambda: "pid" in lsf_cluster.output(key), "the process of its own session")
    lost = int(lsf_cluster.output(key).split()[1])
    assert lsf_cluster.run("bkill", "-s", "USR1", key).stdout == f"Job <{key}> is being signaled\n"
    lsf_cluster.reaches(key, "EXIT")  # the job's shell has no trap for it
    lsf_cluster.until(lambda: gone(lost), "what left the session to end")


def test_the_run_limit_sends_usr2_and_kills_later(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(minute_s=0.5, limit_kill_s=TO_SPEAK_S)
    stubborn = traps(lsf, "-W", "600")
    plain = lsf.submit("sleep 100\n", "-W", "1")
    lsf.shorten(stubborn, 0.1)
    assert lsf.reaches(stubborn, "EXIT").code == 137
    assert heard(lsf, stubborn) == ["USR2"]
    job = lsf.reaches(plain, "EXIT")
    assert (job.code, job.reason) == (140, "TERM_RUNLIMIT: job killed after reaching LSF run time limit")
    assert "Exited with exit code 140" in lsf.run("bhist", "-l", plain).stdout


def test_a_warning_comes_before_the_run_limit(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(minute_s=TO_SPEAK_S, limit_kill_s=TO_SPEAK_S)
    key = traps(lsf, "-W", "600", "-wa", "URG", "-wt", "1")
    lsf.shorten(key, TO_SPEAK_S + 0.1)
    lsf.reaches(key, "EXIT")
    assert heard(lsf, key) == ["URG", "USR2"]
    assert lsf.run("bsub", "-wa", "URG", "true").returncode == 255


def test_bstop_and_bresume(lsf_cluster: LsfCluster) -> None:
    parallel, serial = traps(lsf_cluster, "-n", "2"), traps(lsf_cluster)
    lsf_cluster.run("bstop", parallel, serial)
    assert lsf_cluster.reaches(parallel, "USUSP").suspend_reason == "The job was suspended by user"
    lsf_cluster.until(lambda: "got TSTP" in lsf_cluster.output(parallel), "TSTP, which can be caught")
    pid = lsf_cluster.job(serial).pid
    lsf_cluster.until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "STOP")
    assert lsf_cluster.run("bresume", parallel, serial).returncode == 0
    for key in (parallel, serial):
        lsf_cluster.reaches(key, "RUN")
    lsf_cluster.until(lambda: all("CONT" in heard(lsf_cluster, key) for key in (parallel, serial)), "CONT")


# --- preemption


def test_a_killable_job_is_requeued_with_its_id(make_lsf: MakeLsf, tmp_path: Path) -> None:
    lsf = make_lsf(hosts=1, sequential_signal=True, terminate_s=TO_SPEAK_S)
    key = traps(lsf, "-q", "killable", "-n", "4")
    first = lsf.job(key).started
    urgent = lsf.submit(until_there(tmp_path / "go"), "-q", "urgent", "-n", "4", LSFEMU_USER="eve")
    lsf.reaches(urgent, "RUN")
    job = lsf.job(key)
    assert (job.status, job.runs, hosts_of(job)) == ("PEND", 1, [])
    (tmp_path / "go").touch()
    lsf.reaches(urgent, "DONE")
    job = lsf.reaches(key, "RUN")
    assert (job.runs, job.started > first) == (2, True)
    lsf.until(lambda: lsf.output(key).count("ready") == 2, "its next run to begin")
    assert lsf.output(key).split() == ["ready", "got", "INT", "got", "TERM", "ready"]
    assert "Requeued job is waiting for rescheduling" in lsf.run("bhist", "-l", key).stdout


def test_a_guarantee_and_rn(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(hosts=1)
    lsf.configure(queues=[*lsf.config.queues])
    next(queue for queue in lsf.config.queues if queue.name == "killable").guaranteed_s = 0.8
    lsf.configure()
    key = traps(lsf, "-q", "killable", "-n", "4", "-rn")
    urgent = lsf.submit("true\n", "-q", "urgent", "-n", "4")
    lsf.reaches(urgent, "DONE")
    job = lsf.job(key)
    assert (job.status, job.reason) == ("EXIT", "TERM_PREEMPT: job killed after preemption")
    assert job.ended - job.started >= 0.8


def test_a_preempted_job_of_queue_low_is_suspended(make_lsf: MakeLsf, tmp_path: Path) -> None:
    lsf = make_lsf(hosts=1)
    key = traps(lsf, "-q", "low", "-n", "4")
    urgent = lsf.submit(until_there(tmp_path / "go"), "-q", "urgent", "-n", "2")
    lsf.reaches(urgent, "RUN")
    job = lsf.job(key)
    assert (job.status, job.suspend_reason) == ("SSUSP", f"Preempted by job <{urgent}>")
    (tmp_path / "go").touch()
    lsf.reaches(urgent, "DONE")
    lsf.reaches(key, "RUN")
    lsf.until(lambda: "got CONT" in lsf.output(key), "CONT")
    assert "got TSTP" in lsf.output(key)


def test_requeue_by_exit_value_and_by_its_owner(lsf_cluster: LsfCluster) -> None:
    script = 'echo run\n[ "$(cat $LSB_JOBID.runs 2>/dev/null)" ] && exit 0\necho x > $LSB_JOBID.runs\nexit 99\n'
    folder = str(lsf_cluster.home)
    by_value = lsf_cluster.submit(script, "-Q", "99", "-cwd", folder)
    lsf_cluster.reaches(by_value, "DONE")
    assert lsf_cluster.job(by_value).runs == 2
    assert "rescheduling;(exit code 99)" in lsf_cluster.run("bhist", "-UF", by_value).stdout
    key = traps(lsf_cluster)
    assert lsf_cluster.run("brequeue", key).stdout == f"Job <{key}> is being requeued \n"
    lsf_cluster.until(lambda: lsf_cluster.job(key).runs == 2, "its next run")


# --- windows


def test_bslots_shows_the_gap_before_a_reservation(lsf_cluster: LsfCluster) -> None:
    lsf_cluster.reaches(lsf_cluster.submit("sleep 100\n", "-W", "30", "-n", "8"), "RUN")
    assert lsf_cluster.run("bslots").stdout == "SLOTS          RUNTIME\n8              UNLIMITED\n"
    big = lsf_cluster.submit("true\n", "-n", "16", "-W", "10", LSFEMU_USER="eve")
    lsf_cluster.until(lambda: lsf_cluster.state().reservations, "the plan of the big job")
    assert lsf_cluster.job(big).pend_reason == "Not enough job slot(s): 4 hosts;"
    header, row = lsf_cluster.run("bslots").stdout.splitlines()
    assert (header, row[:15]) == ("SLOTS          RUNTIME", "8              ")
    assert row[15:].startswith("29 minutes ")
    slots, runtime, hosts = lsf_cluster.run("bslots", "-l").stdout.splitlines()
    assert (slots, runtime[:18], hosts) == ("SLOTS:    8", "RUNTIME:  29 minut", "HOSTS:    4*h3 4*h4 ")
    none = lsf_cluster.run("bslots", "-n", "4", "-W", "40")
    assert (none.stderr, none.returncode) == ("No backfill window meets these requirements.\n", 255)
    fits = lsf_cluster.submit("sleep 100\n", "-n", "4", "-W", "20")
    too_long = lsf_cluster.submit("sleep 100\n", "-n", "4", "-W", "40")
    assert hosts_of(lsf_cluster.reaches(fits, "RUN")) == ["h3"]
    lsf_cluster.until(lambda: "Not enough" in lsf_cluster.job(too_long).pend_reason, "the long one to wait")
    assert lsf_cluster.run("bslots").stdout.splitlines()[1].startswith("4  ")
    full = lsf_cluster.submit("sleep 100\n", "-n", "4", "-W", "20")
    lsf_cluster.reaches(full, "RUN")
    assert lsf_cluster.run("bslots").stdout == "No backfill window exists at this time\n"


def test_interruptible_backfill_ends_before_the_reserver(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(hosts=2, limit_kill_s=TO_SPEAK_S)
    first = lsf.submit("sleep 1000\n", "-W", "10", "-n", "4")
    lsf.reaches(first, "RUN")
    big = lsf.submit("sleep 0.1\n", "-n", "8", "-W", "5", LSFEMU_USER="eve")
    lsf.until(lambda: lsf.state().reservations, "the plan of the big job")
    key = traps(lsf, "-q", "background", "-n", "4", "-W", "600")
    job = lsf.job(key)
    assert hosts_of(job) == ["h2"]
    assert 1.0 <= job.limit_s <= 600.0, "the gap's length: its own -W does not count"
    lsf.shorten(key, 0.1)
    lsf.run("bkill", first)
    assert lsf.reaches(key, "EXIT").reason.startswith("TERM_RUNLIMIT")
    assert heard(lsf, key) == ["USR2"]
    lsf.reaches(big, "DONE")


# --- trouble


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("-q", "nosuch"), "No such queue. Job not submitted"),
        (("-n", "99"), "Too many processors requested. Job not submitted."),
        (("-W", "abc"), "abc: Bad RUNLIMIT specification. Job not submitted."),
        (("-q", "background", "-W", "99:00"), "RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted."),
        (("-R", "select[a] select[b]"), 'Error near "select" : duplicate section. Job not submitted.'),
        (("-nnodes", "2"), "bsub: illegal option -- nnodes. Job not submitted."),
    ],
)
def test_bsub_refuses(lsf_cluster: LsfCluster, options: tuple[str, ...], error: str) -> None:
    done = lsf_cluster.run("bsub", *options, "true")
    assert (done.stdout, done.returncode) == ("", 255)
    assert error in done.stderr


def test_faults_come_when_they_are_asked_for(lsf_cluster: LsfCluster) -> None:
    key = lsf_cluster.submit("sleep 100\n")
    lsf_cluster.reaches(key, "RUN")
    ask = ("bjobs", "-noheader", "-o", "jobid", key)
    lsf_cluster.faults("bjobs wait 2")
    waited = lsf_cluster.run(*ask)
    assert (waited.stdout.split(), waited.stderr.count("Please wait ...")) == ([key], 2)
    lsf_cluster.faults("bjobs empty x1", "bsub banner", "bhist slow 0.01", "bjobs lost 7")
    empty = lsf_cluster.run(*ask)
    assert (empty.stdout, empty.stderr, empty.returncode) == ("", "", 0)
    assert lsf_cluster.run(*ask).stdout.split() == [key]
    replies = lsf_cluster.run("bsub", "-P", "cpp", "true").stdout.splitlines()
    assert replies == ["Job is submitted to <cpp> project.", "Job <102> is submitted to default queue <normal>."]
    lsf_cluster.faults(f"bjobs lost {key}", "bhosts mail", "bhosts noise * maintenance at noon *")
    told = lsf_cluster.run("bhosts").stdout.splitlines()
    assert (told[0], told[-1]) == ("* maintenance at noon *", "You have new mail in /var/spool/mail/test")
    lost = lsf_cluster.run(*ask)
    assert (lost.stderr, lost.returncode) == (f"Job <{key}> is not found\n", 255)
    lsf_cluster.faults("* refused")
    refused = lsf_cluster.run(*ask)
    assert (refused.stderr, refused.returncode) == ("Request from non-LSF host rejected\n", 255)


def test_jobs_of_others_are_shown_but_not_touched(lsf_cluster: LsfCluster) -> None:
    key = lsf_cluster.submit("sleep 100\n", LSFEMU_USER="eve")
    assert lsf_cluster.run("bjobs").stderr == "No unfinished job found\n"
    assert key in lsf_cluster.run("bjobs", "-u", "all").stdout
    killed = lsf_cluster.run("bkill", key)
    assert (killed.stderr, killed.returncode) == (f"Job <{key}>: User permission denied\n", 255)


def test_finished_jobs_are_forgotten_by_bjobs_and_not_by_bhist(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(clean_s=0.2)
    key = lsf.submit("true\n")
    lsf.reaches(key, "DONE")
    lsf.until(lambda: lsf.run("bjobs", key).stderr == f"Job <{key}> is not found\n", "CLEAN_PERIOD to be over")
    assert "Done successfully" in lsf.run("bhist", "-l", key).stdout
    assert lsf.run("bhist", "4242").returncode == 255


def test_an_lsf_like_system_without_the_capable_forms(make_lsf: MakeLsf) -> None:
    lsf = make_lsf(style="openlava")
    key = lsf.submit("sleep 100\n", "-n", "8")
    lsf.reaches(key, "RUN")
    for refused in (("bjobs", "-o", "jobid"), ("bjobs", "-json"), ("bhosts", "-o", "host_name")):
        done = lsf.run(*refused)
        assert (done.stdout, done.returncode) == ("", 255)
        assert "illegal option" in done.stderr
    assert not (lsf.home / "bin" / "bslots").exists()
    assert "Started on 8 Hosts/Processors <4*h1> <4*h2>" in lsf.run("bjobs", "-UF", key).stdout


def test_json(lsf_cluster: LsfCluster) -> None:
    key = lsf_cluster.submit("sleep 100\n", "-n", "8", "-Jd", "a/b")
    lsf_cluster.reaches(key, "RUN")
    done = lsf_cluster.run("bjobs", "-o", "jobid stat exec_host job_description", "-json", key, "77")
    assert done.returncode == 255
    good, unknown = json.loads(done.stdout)["RECORDS"]
    assert good == {"JOBID": key, "STAT": "RUN", "EXEC_HOST": "4*h1:4*h2", "JOB_DESCRIPTION": "a/b"}
    assert unknown == {"JOBID": "77", "ERROR": "Job <77> is not found"}
    assert "You cannot use the -json option" in lsf_cluster.run("bjobs", "-json").stderr


def test_a_killed_test_leaves_nothing_behind(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.lsf.cluster import LsfCluster\n"
        f"lsf = LsfCluster(Path({str(tmp_path / 'lsf')!r})).start()\n"
        "key = lsf.submit('setsid sleep 1000 & sleep 1000\\n'); lsf.until(lambda: lsf.job(key).pid, 'pid')\n"
        "print(lsf.scheduler_pid, lsf.job(key).pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    ) as test:
        assert test.stdout is not None
        pids = [int(word) for word in test.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(gone(pid) for pid in pids)
        os.kill(test.pid, signal.SIGKILL)
    waiting = LsfCluster(tmp_path / "other")
    waiting.until(lambda: all(gone(pid) for pid in pids), "scheduler and job to end with the test")


def test_no_job_outlives_a_killed_scheduler(tmp_path: Path) -> None:
    lsf = LsfCluster(tmp_path / "lsf").start()
    key = lsf.submit("setsid sleep 1000 & sleep 1000\n")
    pid = lsf.until(lambda: lsf.job(key).pid, "the job's process")
    os.kill(lsf.scheduler_pid, signal.SIGKILL)
    lsf.until(lambda: gone(pid), "the job to end")
    with pytest.raises(AssertionError):
        lsf.stop()
