"""What launchers print of ranks that failed. Recordings: PyTorch 2.13, torchrun --standalone with two ranks."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from hpcdl.agent.supervisor import exit_cause
from hpcdl.agent.supervisor.exit_cause import MARK, Exit, OomKillCounter, RankFailure, Repeats, exit_of, given_up
from hpcdl.agent.supervisor.output import Log, ProgressReader, TrainerOutput
from hpcdl.agent.supervisor_link import Names
from hpcdl.agent.supervisor_link import exit_of as exited
from hpcdl.core.model.incarnation import Cause

RECORDINGS = Path(__file__).parents[2] / "recordings" / "torchrun"
NOT_THERE = (
    "/home/ada/venv/bin/python: can't open file '/home/ada/job/not_there.py': [Errno 2] No such file or directory"
)
TRACEBACK = "Traceback (most recent call last):"
EXIT_1 = 1 << 8


def recorded(name: str) -> bytes:
    return (RECORDINGS / f"{name}.txt").read_bytes()


def ended(output: bytes, status: int = EXIT_1, killed_one: bool = False) -> Exit:
    return exit_of(status, output, False, False, OomKillCounter("/nowhere"), killed_one)


PEER = b"""[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:7348: Connection reset by peer.
"""
OWN = PEER.replace(b"[rank0]", b"[rank1]").replace(b"RuntimeError: [gloo/transport/tcp/pair.cc:537]", b"ValueError:")
OWN = OWN.replace(b"Connection reset by peer", b"no such data set")


def test_who_loses_a_rank_that_was_killed_is_not_to_blame() -> None:
    """Lightning's own launcher: the first rank fails for want of the second, and says nothing of how that ended."""
    assert (ended(PEER, killed_one=True).code, ended(PEER, killed_one=True).killed) == (1, "SIGKILL")
    assert ended(PEER).killed is None, "the other rank ended by itself"
    assert ended(OWN, killed_one=True).killed is None, "its launcher killed the others for it"
    assert ended(OWN + PEER, killed_one=True).killed is None, "one of them was not killed"
    assert ended(b"gave up\n", killed_one=True).killed is None
    ours = exit_of(EXIT_1, PEER, False, True, OomKillCounter("/nowhere"), True)
    assert ours.killed is None, "we may have killed it"


@pytest.mark.parametrize(
    ("last", "node_fault"),
    [
        ("OSError: [Errno 116] Stale file handle", True),
        ("OSError: [Errno 5] Input/output error: '/data/train.tar'", True),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/fuse/x'", True),
        ("OSError: [Errno 107] Transport endpoint is not connected", False),  # a socket of its own
        ("python: can't open file '/home/ada/train.py': [Errno 116] Stale file handle", True),
        ("/home/ada/run.sh: line 3: /home/ada/bin/train: Stale file handle", True),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.tar'", False),
        ("PermissionError: [Errno 13] Permission denied: '/data/train.tar'", False),
    ],
)
def test_a_program_that_a_stale_mount_ended(last: str, node_fault: bool) -> None:
    found = ended(f"step 3\n{last}\n".encode())
    assert found.node_fault == node_fault
    assert found.permanent == node_fault, "its program alone says so: it may be its user's doing"
    assert not ended(f"{last}\n".encode(), status=9).node_fault, "it was killed, whatever it said before"
    assert not ended(f"{last}\ngoes on without it\nValueError: no such data set\n".encode()).node_fault


@pytest.mark.parametrize(
    "name,detail",
    [
        ("a_rank_raises", "ValueError: no such data set: 'x'"),
        ("no_log_line_only_the_banner", "ValueError: no such data set: 'x'"),
        ("no_such_file_restarted_once", NOT_THERE),
    ],
)
def test_the_detail_names_the_cause_and_not_the_banner(name: str, detail: str) -> None:
    found = ended(recorded(name))
    assert (found.code, found.detail, found.killed, found.oom) == (1, detail, None, False)


@pytest.mark.parametrize(
    "name", ["a_rank_is_killed", "a_rank_is_killed_and_its_peer_raises", "spawn_of_multiprocessing"]
)
def test_a_rank_that_was_killed_is_no_error_of_the_job(name: str) -> None:
    found = ended(recorded(name))
    assert found.killed == "SIGKILL"
    event = exited(found.fields | {"type": "exit"}, Names(job=1, incarnation=1, membership=1, node="n1"), None, False)
    assert event.hint is Cause.INFRASTRUCTURE
    assert "SIGKILL" in event.detail
    assert ended(recorded(name), 0) == Exit(0), "it may have been started again"


HOROVODRUN = """{ranks}
Process {rank} exit with status code {code}.
Terminating remaining workers after failure of Process {rank}.
Process {other} exit with status code 143.
Traceback (most recent call last):
  File "/home/ada/venv/bin/horovodrun", line 8, in <module>
    sys.exit(run_commandline())
             ^^^^^^^^^^^^^^^^^
  File "/home/ada/venv/lib/python3.11/site-packages/horovod/runner/gloo_run.py", line 284, in launch_gloo
    raise RuntimeError('Horovod detected that one or more processes exited with non-zero '
RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be \
terminated. The first process to do so was:
Process name: {rank}
Exit code: {code}

"""
LOST = """[0]<stderr>:Traceback (most recent call last):
[0]<stderr>:  File "train.py", line 32, in <module>
[0]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.
"""


def horovodrun(rank: int, code: int, ranks: str) -> bytes:
    """What 0.28.1 prints at the end of two ranks, the one of which fails first."""
    return HOROVODRUN.format(rank=rank, other=1 - rank, code=code, ranks=ranks).encode()


def test_a_rank_of_horovodrun_that_was_killed_is_no_error_of_the_job() -> None:
    assert ended(horovodrun(1, 137, "[1]<stderr>:Killed")).killed == "SIGKILL"
    assert ended(horovodrun(0, 1, LOST + "[1]<stderr>:Killed")).killed == "SIGKILL", "the other was seen first"
    assert ended(horovodrun(1, 143, "")).killed == "SIGTERM"


def test_an_error_of_a_rank_of_horovodrun_is_named() -> None:
    raised = "[1]<stderr>:Traceback (most recent call last):\n[1]<stderr>:ValueError: no such data set: 'x'\n" + LOST
    found = ended(horovodrun(1, 1, raised))
    assert (found.code, found.detail, found.killed) == (1, "ValueError: no such data set: 'x'", None)


def test_what_torchrun_itself_killed_is_not_from_outside() -> None:
    listed = recorded("a_rank_raises").replace(
        b"exitcode  : -15 (pid: 12562)  (SIGTERM)", b"exitcode  : -9 (pid: 12562)"
    )
    assert ended(listed).killed == "SIGKILL"
    forced = listed.replace(b"E1123", b"W1123 Unable to shutdown process 12562 via 15, forcefully exiting via 9\nE1123")
    assert (ended(forced).killed, ended(forced).detail) == (None, "ValueError: no such data set: 'x'")


def test_the_memory_of_a_gpu_is_found_before_the_banner() -> None:
    found = ended(recorded("out_of_gpu_memory"))
    assert (found.oom, found.killed) == (True, None)
    assert found.detail.startswith("torch.OutOfMemoryError: CUDA out of memory")


@pytest.mark.parametrize(
    "said,signal",
    [
        (b"subprocess.CalledProcessError: Command '['python', 'x.py']' died with <Signals.SIGKILL: 9>.", "SIGKILL"),
        (b"[launch.py:325:sigkill_handler] ['python', 'x.py'] exits with return code = -9", "SIGKILL"),
        (b"RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. ", "SIGKILL"),
        (b"RuntimeError: DataLoader worker (pid(s) 7, 8) is killed by signal: Killed. ", "SIGKILL"),
        (b"process 0 terminated with signal SIGTERM", "SIGTERM"),
        (b"process 0 terminated with signal SIGSEGV", None),
        (b"RuntimeError: it died", None),
    ],
)
def test_other_launchers_hide_a_signal_too(said: bytes, signal: str | None) -> None:
    assert ended(b"step 1\n" + said + b"\n").killed == signal
    assert exit_of(EXIT_1, said, False, True, OomKillCounter("/nowhere")).killed is None, "we may have killed it"


FROM = "\nThe above exception was the direct cause of the following exception:\n\n"
UNEXPECTED = f"{TRACEBACK}\n  x\nRuntimeError: DataLoader worker (pid(s) 29130) exited unexpectedly\n"
EMPTY = f"{TRACEBACK}\n  x\n_queue.Empty\n{FROM}{UNEXPECTED}"  # its loader is read by a thread: no handler of SIGCHLD
WITH_CODE = (
    f"{TRACEBACK}\n  x\nRuntimeError: DataLoader worker (pid 29130) exited unexpectedly with exit code 1. Details are "
    "lost due to multiprocessing. Rerunning with num_workers=0 may give better error trace.\n"
)
OF_WORKER = f"Process ForkProcess-2:\n{TRACEBACK}\n  x\nStop: bad sample\n"
RAISED = f"{TRACEBACK}\n  x\nValueError: Caught ValueError in DataLoader worker process 1.\nOriginal {TRACEBACK}\n  y\n"
RAISED += "ValueError: bad sample\n\n"
READING = f"""{TRACEBACK}
  File "/venv/torch/utils/data/dataloader.py", line 1291, in _try_get_data
    data = self._data_queue.get(timeout=timeout)
  File "/venv/torch/multiprocessing/reductions.py", line 538, in rebuild_storage_fd
    fd = df.detach()
  File "/lib/python3.11/multiprocessing/resource_sharer.py", line 86, in get_connection
    c = Client(address, authkey=process.current_process().authkey)
ConnectionResetError: [Errno 104] Connection reset by peer
"""
PINNING = READING.replace("dataloader.py", "_utils/pin_memory.py")
PINNED = f"{TRACEBACK}\n  x\nRuntimeError: Pin memory thread exited unexpectedly\n"
LONG = "  a frame of Lightning's\n" * 60


def by_signal(said: str) -> str:
    return f"{TRACEBACK}\n  x\nRuntimeError: DataLoader worker (pid 29130) is killed by signal: {said}. \n"


@pytest.mark.parametrize(
    "said,signal",
    [
        (by_signal("Killed"), "SIGKILL"),
        (by_signal("Terminated"), "SIGTERM"),
        (by_signal("Killed") + FROM + UNEXPECTED, "SIGKILL"),
        (by_signal("Killed") + FROM + UNEXPECTED.replace("  x", LONG), "SIGKILL"),
        (UNEXPECTED, "SIGKILL"),
        (EMPTY, "SIGKILL"),
        (EMPTY.replace("_queue.Empty", "ConnectionRefusedError: [Errno 111] Connection refused"), "SIGKILL"),
        (EMPTY + PEER.decode().replace("  File", LONG), "SIGKILL"),  # the other rank's, which lost this one
        (PEER.decode() + EMPTY, "SIGKILL"),
        (READING, "SIGKILL"),
        (READING.replace("ConnectionResetError: [Errno 104] Connection reset by peer", "EOFError"), "SIGKILL"),
        (READING + PEER.decode().replace("  File", LONG), "SIGKILL"),
        (PINNING + PINNED, "SIGKILL"),
        (PINNED, None),
        (READING.replace("ConnectionReset", "Value"), None),
        (READING.replace("torch/utils/data/dataloader", "mine"), None),
        (OF_WORKER + READING, None),
        (by_signal("Segmentation fault"), None),
        (by_signal("Aborted") + FROM + UNEXPECTED, None),
        (by_signal("Bus error") + FROM + UNEXPECTED, None),
        (WITH_CODE, None),
        (WITH_CODE + FROM + UNEXPECTED, None),
        (OF_WORKER + WITH_CODE + FROM + UNEXPECTED, None),
        (OF_WORKER + EMPTY, None),
        (EMPTY + "goes on without it\n" * 50 + OWN.decode(), None),
        (RAISED, None),
    ],
)  # fmt: skip
def test_a_worker_of_a_data_loader_that_was_killed(said: str, signal: str | None) -> None:
    """Recorded with PyTorch 2.13: a worker that is killed, one that raises, exits or crashes by itself."""
    assert ended(f"step 1\n{said}".encode()).killed == signal
    assert exit_of(EXIT_1, said.encode(), False, True, OomKillCounter("/nowhere")).killed is None, "we may have done it"


GLOO = PEER.decode()
STORE = GLOO.replace("[gloo/transport/tcp/pair.cc:537] Read error", "[c10d] The client socket has failed to connect to")
NCCL = GLOO.replace(
    "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error", "torch.distributed.DistBackendError: NCCL"
)


def banner(code: int) -> str:
    """Torchrun's last words where rank 1 of two failed first."""
    return f"""E1129 13:46:17 21981 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) \
local_rank: 1 (pid: 21992) of binary: python
{TRACEBACK}
  x
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 21991)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 21992)
"""


@pytest.mark.parametrize(
    ("said", "code", "detail"),
    [
        (PEER.decode(), 3, "a rank ended with exit code 3 and said nothing"),
        (PEER.decode(), 1, "a rank ended with exit code 1 and said nothing"),
        (PEER.decode().replace("[rank0]", "[rank1]"), 1, "RuntimeError: [gloo/transport"),
        (PEER.decode().replace("[rank0]: ", ""), 1, "RuntimeError: [gloo/transport"),
        (OWN.decode() + PEER.decode(), -6, "ValueError: "),
        (PEER.decode(), -6, "SIGABRT ended one of its ranks (process 21992)"),
        (OWN.decode() + PEER.decode(), -11, "SIGSEGV ended one of its ranks (process 21992)"),
        ("", 3, "a rank ended with exit code 3 and said nothing"),
    ],
)
def test_the_rank_that_torchrun_saw_fail_first_is_the_cause(said: str, code: int, detail: str) -> None:
    """Whatever the others said that lost it. Recorded: exits, an error and a signal of rank 1 of two, by gloo."""
    assert ended(f"{said}{banner(code)}".encode()).detail.startswith(detail)


@pytest.mark.parametrize("lost", [GLOO, STORE, NCCL, LOST], ids=["gloo", "TCPStore", "NCCL", "Horovod"])
def test_a_peer_that_is_lost_is_not_the_cause(lost: str) -> None:
    own = OWN.decode()
    for said in (own + lost, lost + own, own + lost + lost, own.replace("  File", LONG) + lost.replace("  File", LONG)):
        assert ended(said.encode()).detail.startswith("ValueError: ")
        assert exit_cause.cause_line(said.encode(), first=True).startswith("ValueError: ")
    far = own + "handled, goes on\n" * 30 + lost
    assert lost is LOST or not ended(far.encode()).detail.startswith("ValueError: "), "it was another one's end"
    silent = ended(f"step 1\n{lost}".encode(), status=3 << 8)
    assert silent.detail == "a rank ended with exit code 3 and said nothing"
    alone = f"{TRACEBACK}\n  x\nConnectionResetError: [Errno 104] Connection reset by peer\n"
    assert ended(alone.encode(), status=3 << 8).detail.startswith("ConnectionResetError"), "a database's"


@pytest.mark.parametrize(
    "said,detail",
    [
        (f"{TRACEBACK}\n  x\nKeyError: 'a'\n\nDuring handling of the above ...\n\n{TRACEBACK}\n  y\nOSError: b\n",
         "OSError: b"),
        (f"{TRACEBACK}\n  x\nKeyError: 'a'\nwandb: run failed\nx.py:254: UserWarning: leaked\n  warnings.warn(\n",
         "KeyError: 'a'"),
        (f"{TRACEBACK}\n  x\nKeyError: 'a'\n" + "epoch\n" * 30 + "fatal: disk\n", "fatal: disk"),
        (f"{TRACEBACK}\n  x\nValueError: a\n{TRACEBACK}\n  y\nsubprocess.CalledProcessError: Command '['x']' ...\n",
         "ValueError: a"),
        ("  File \"x.py\", line 1\n    x = (\n        ^\nSyntaxError: '(' was never closed\n",
         "SyntaxError: '(' was never closed"),
        ("/usr/bin/python3: No module named missing\n", "/usr/bin/python3: No module named missing"),
        ("step 1\nno data\n", "no data"),
        ("", ""),
        ("=====\n", "====="),
    ],
)  # fmt: skip
def test_the_line_that_names_the_cause(said: str, detail: str) -> None:
    assert exit_cause.cause_line(said.encode()) == detail


def test_the_first_rank_is_blamed_though_their_lines_are_mixed() -> None:
    said = b"""[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "x.py", line 1
[rank0]:   File "x.py", line 7
[rank1]: ValueError: bad sample
[rank0]: RuntimeError: Connection closed by peer
[rank0]:[W1123 10:00:00.000000000 ProcessGroupNCCL.cpp:1250] Warning: destroy_process_group() was not called
"""
    assert exit_cause.cause_line(said, first=True) == "ValueError: bad sample"


# --- again and again ------------------------------------------------------------------------------------------------

BAD = RankFailure(2, None, "can't open file 'x.py'")


def test_three_failures_alike_before_the_first_step_are_enough() -> None:
    repeats = Repeats()
    ends = [repeats.failed(BAD, False, each, None, float(each)) for each in range(3)]
    assert ends[:2] == [(1, ""), (2, "")]
    assert ends[2] == (3, "can't open file 'x.py' (3 times alike before their first step)")


def test_what_varies_from_start_to_start_makes_no_other_failure() -> None:
    repeats = Repeats()
    told = [RankFailure(1, None, f"Error at 0x7f{each}a: port {each}") for each in range(3)]
    assert [repeats.failed(each, False, 1, 7, 1.0)[0] for each in told] == [1, 2, 3]


MISSING = "ModuleNotFoundError: No module named 'gone'"
MIXED = (
    f"{MISSING}{MISSING}\n\n",
    f"{MISSING}\n{MISSING}\n",
    "ModuleNotFoundErrorModuleNotFoundError: : No module named 'gone'No module named 'gone'\n\n",
    f"ModuleNotFoundError{MISSING}\n: No module named 'gone'\n",
)


@pytest.mark.parametrize("order", list(itertools.permutations(MIXED, 3)))
def test_lines_of_two_ranks_that_are_mixed_are_no_other_failure(order: tuple[str, ...]) -> None:
    """As they came from `python -m no_such_module` on two ranks: a line and its end are two writes."""
    repeats, ends = Repeats(), []
    for number, said in enumerate(order):
        mark = f"E1123 20:09:34 7716 api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: {number}) of binary: x\n"
        traceback = f'{TRACEBACK}\n  File "x.py", line 1, in <module>\n'
        failure = exit_cause.torchrun_failure(f"{traceback}{said}{mark}".encode())
        assert failure is not None
        ends.append(repeats.failed(failure, False, 1, None, 1.0))
    assert [alike for alike, _ in ends] == [1, 2, 3]
    assert "No module named 'gone'" in ends[-1][1]


def test_the_same_words_in_another_error_are_another_failure() -> None:
    repeats = Repeats()
    told = [RankFailure(1, None, text) for text in ("KeyError: 'loss'", "KeyError: 'epoch'", "====", "----")]
    assert [repeats.failed(each, False, 1, None, 1.0)[0] for each in told] == [1, 1, 1, 1]


def test_failures_that_are_not_alike_are_enough_at_four() -> None:
    repeats = Repeats()
    told = [RankFailure(1, None, text) for text in "abcd"]
    ends = [repeats.failed(each, False, 1, 7, 1.0)[1] for each in told]
    assert [bool(each) for each in ends] == [False, False, False, True]
    assert ends[3] == "d (its ranks failed 4 times in a row at step 7)"


def test_a_step_or_a_long_life_between_them_begins_anew() -> None:
    repeats = Repeats()
    assert not any(repeats.failed(BAD, False, 1, step, 1.0)[1] for step in (1, 1, 2, 2, 3, 3))
    repeats = Repeats()
    assert not any(repeats.failed(BAD, False, 1, None, at)[1] for at in (0.0, 1.0, 900.0, 901.0))


def test_what_is_said_of_a_missing_torch_is_the_cause() -> None:
    """An error that names torchrun's module is no line of torchrun's."""
    missing = (
        "ImportError: Error while finding module specification for 'torch.distributed.run' (No module named 'torch')"
    )
    said = f"""{TRACEBACK}
  File "<frozen runpy>", line 131, in _get_module_details
ModuleNotFoundError: No module named 'torch'

The above exception was the direct cause of the following exception:

{TRACEBACK}
  File "<frozen runpy>", line 140, in _get_module_details
{missing}
"""
    assert exit_cause.cause_line(said.encode()) == missing


def test_a_loop_around_torchrun_hides_no_cause() -> None:
    """What torchrun said of the failure before stands between the two marks."""
    once = recorded("no_such_file_restarted_once")
    failure = exit_cause.torchrun_failure(once + once)
    assert failure is not None
    assert failure.detail == NOT_THERE


def test_a_torchrun_of_the_users_own_may_start_again_what_has_lived_for_a_minute() -> None:
    repeats = Repeats(exit_cause.OWN_LONG_S)
    assert not any(repeats.failed(BAD, False, 0, None, at)[1] for at in (10.0, 80.0, 150.0, 220.0))
    assert repeats.failed(BAD, False, 0, None, 221.0) == (2, "")
    assert repeats.failed(BAD, False, 0, None, 222.0)[0] == 3


def test_who_is_killed_from_outside_is_started_again() -> None:
    """Ten times in a row is no life here: that is infrastructure, and no error of the job's."""
    repeats, shot = Repeats(), RankFailure(None, "SIGKILL", "SIGKILL ended one of its ranks (process 7)")
    ends = [repeats.failed(shot, True, 1, None, 1.0) for _ in range(10)]
    assert [bool(why) for _, why in ends] == [False] * 9 + [True]
    end = given_up(shot, False, ends[-1][1], ends[-1][0])
    assert (end.killed, end.repeats, end.oom) == ("SIGKILL", 1, False)
    repeats = Repeats()
    memory = [repeats.failed(shot, False, 1, None, 1.0) for _ in range(3)]
    assert memory[-1][0] == 3, "the kernel does that again"
    assert given_up(shot, True, "killed", 3) == Exit(1, None, "killed", oom=True, repeats=3)


def test_peers_that_are_lost_with_other_nodes_are_no_failure_alike() -> None:
    repeats, lost = Repeats(), RankFailure(1, None, "RuntimeError: Connection closed by peer [10.0.0.7]:4711")
    assert [repeats.failed(lost, False, membership, None, 1.0)[0] for membership in (1, 2, 3)] == [1, 1, 1]


def test_ranks_that_left_for_another_membership_did_not_fail() -> None:
    repeats = Repeats()
    assert not any(repeats.failed(RankFailure(143, None, "x"), False, 1, None, 1.0)[1] for _ in range(20))


@pytest.mark.parametrize("size", [1, 7, 60, 10_000])
def test_marks_are_seen_however_the_output_comes(tmp_path: Path, size: int) -> None:
    marked: list[bytes] = []
    log = Log(str(tmp_path / "log"), 1 << 20, print)
    output = TrainerOutput(log, ProgressReader(None, None, print), lambda _: None, MARK, marked.append)
    said = recorded("no_such_file_restarted_once")
    for at in range(0, len(said), size):
        os.write(output.write_ends[0], said[at : at + size])
        output.read(output.pipes[0])
    output.started()
    output.finish()
    assert [exit_cause.torchrun_failure(each) for each in marked] == [RankFailure(2, None, NOT_THERE)] * 2
    assert marked[0].count(MARK) == 1
