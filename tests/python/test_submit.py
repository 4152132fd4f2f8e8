"""`hpcdl.submit`, `map`, `job` and `jobs` before a daemon that is only its API."""

import asyncio
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hpcdl
from hpcdl.python import options
from hpcdl.python.executor import follow
from hpcdl.trainer.call import IMPORTS
from tests.cli.fake import FakeDaemon, row
from tests.ledger.test_recorded_home import home as recorded_home
from tests.support.activation import activate
from tests.support.waiting import until

recorded = recorded_home
"""A home of an earlier version, with jobs in every state."""

ROOT = Path(__file__).parents[2]
SUBMIT: Any = hpcdl.submit  # which a type checker lets one call wrongly
MAP: Any = hpcdl.map


def train(lr: float, epochs: int = 2) -> float:
    return lr * epochs


def clash(model: str, nodes: int = 1) -> str:
    return model


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HPCDL_HOME", str(home))
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    daemon = FakeDaemon(home).start()
    yield daemon
    daemon.close()


def entry(fake: FakeDaemon) -> dict[str, Any]:
    """The job that was submitted last."""
    body = next(body for method, path, body in reversed(fake.requests) if (method, path) == ("POST", "/v1/jobs"))
    found: dict[str, Any] = body["jobs"][0]
    return found


def call_of(fake: FakeDaemon) -> dict[str, Any]:
    """The call that was submitted last."""
    command = entry(fake)["command"]
    folder = Path(command[command.index("hpcdl.trainer.call") + 1])
    found: dict[str, Any] = json.loads((folder / "call.json").read_text())
    return found


def test_options_and_arguments_are_told_apart(fake: FakeDaemon) -> None:
    job = hpcdl.submit(train, lr=0.1, gpus="1:2", name="first", env={"A": "1"}, tags=["x"], hold=True)
    assert (job.id, job.home) == (1, fake.home)
    sent = entry(fake)
    assert sent["command"][:3] == [sys.executable, "-m", "hpcdl.trainer.call"]
    assert (sent["name"], sent["gpus_min"], sent["gpus_max"], sent["held"]) == ("first", 1, 2, True)
    assert sent["tags"] == ["x"]
    assert ["A", "1"] in sent["env"]
    assert "SECRET_TOKEN" not in dict(sent["env"])
    call = call_of(fake)
    assert (call["module"], call["name"], call["args"], call["keywords"]) == (__name__, "train", [], {"lr": 0.1})
    _ = hpcdl.submit(train, 0.2, args={"epochs": 5}, options={"steps": 7})
    assert (entry(fake)["name"], entry(fake)["steps"]) == ("train", 7)
    assert (call_of(fake)["args"], call_of(fake)["keywords"]) == ([0.2], {"epochs": 5})


@pytest.mark.parametrize(
    ("submit", "kind", "why"),
    [
        (lambda: SUBMIT(train), TypeError, r"train\(lr.*missing a required argument: 'lr'; options of the job"),
        (lambda: SUBMIT(train, lr=1, gpu=2), TypeError, "argument 'gpu': did you mean gpus\\?; options"),
        (lambda: SUBMIT(train, lrs=1), TypeError, "'lr'; it has no lrs: did you mean lr\\?"),
        (lambda: SUBMIT(train, lr=1, zzz=2), TypeError, "unexpected keyword argument 'zzz'; options"),
        (
            lambda: MAP(train, {"lr": [1], "gpus": [1, 2]}),
            TypeError,
            "'gpus': gpus is an option of a job, which is neither",
        ),
        (lambda: SUBMIT(["true"], gpu=1), hpcdl.SubmitError, "gpu is no option of a job: did you mean gpus\\?"),
        (lambda: SUBMIT(train, lr=1, gpus="many"), hpcdl.SubmitError, "gpus: 'many' is not a number"),
        (
            lambda: SUBMIT(train, lr=1, options={"bogus": 1}),
            hpcdl.SubmitError,
            "bogus is no option of a job: there are acc",
        ),
        (lambda: SUBMIT(train, lr=1, gpus={1}.pop), hpcdl.SubmitError, "gpus cannot be <built-in"),
        (lambda: SUBMIT(train, lr=1, hold="yes"), hpcdl.SubmitError, "hold must be True or False, got 'yes'"),
        (lambda: SUBMIT(train, lr=1, max_parallel=2), hpcdl.SubmitError, "--max-parallel needs --array"),
        (lambda: SUBMIT(train, lr=1, args={"lr": 2}), hpcdl.SubmitError, "lr is given twice: in args"),
        (
            lambda: SUBMIT(clash, model="m"),
            hpcdl.SubmitError,
            r"model is an option of a job and an argument of clash: write args=\{'model': ...\}",
        ),
        (lambda: SUBMIT("python train.py"), hpcdl.SubmitError, "as a list of words"),
        (lambda: SUBMIT([]), hpcdl.SubmitError, "give a function, or a command"),
        (lambda: SUBMIT(["true"], lr=1), hpcdl.SubmitError, "lr is no option of a job"),
        (lambda: SUBMIT(["true"], python="x"), hpcdl.SubmitError, "python is an option for functions"),
        (lambda: MAP(train, []), hpcdl.SubmitError, "nothing to map over"),
        (lambda: MAP(train, {"lr": [1, 1]}), hpcdl.SubmitError, "lr has 1 twice in the sweep"),
        (lambda: MAP(train, {"lr": 0.1}), hpcdl.SubmitError, r"the sweep lr is a list of values, .*, not 0\.1$"),
        (lambda: MAP(train, {"lr": "0.1,2"}), hpcdl.SubmitError, "the sweep lr is a list of values, .*, not '0.1,2'$"),
        (lambda: MAP(["true"], {"lr": "0.1,2"}), hpcdl.SubmitError, "the sweep lr is a list of values"),
        (lambda: MAP(train, [0.1, 0.2]), hpcdl.SubmitError, r"or a list of dicts with each job's .* no 0\.1$"),
        (lambda: MAP(train, ["a", "b"]), hpcdl.SubmitError, "or a list of dicts with each job's .* no 'a'$"),
        (lambda: MAP(train, 0.1), hpcdl.SubmitError, r"or a list of dicts with each job's .* no 0\.1$"),
        (lambda: MAP(train, {"lr": []}), hpcdl.SubmitError, "the sweep lr has no values"),
        (lambda: MAP(train, {"lr": [1]}, args={"lr": 1}), hpcdl.SubmitError, "lr is in the sweep, and an arg"),
        (lambda: MAP(train, [{"lr": 1}, {"bs": 2}]), TypeError, "missing a required argument: 'lr'"),
        (lambda: MAP(["true"], [{"lr": 1}]), hpcdl.SubmitError, "for a command give a dict of lists"),
    ],
)
def test_a_wrong_call_is_one_clear_error(
    fake: FakeDaemon, submit: Callable[[], Any], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why) as caught:
        submit()
    assert "\n" not in str(caught.value)
    assert not fake.world.jobs
    assert not list(fake.home.glob("calls/*"))


def test_a_name_that_is_both_may_be_either(fake: FakeDaemon) -> None:
    _ = hpcdl.submit(clash, args={"model": "resnet"}, options={"model": "vit", "nodes": 2})
    assert (call_of(fake)["keywords"], entry(fake)["model"]) == ({"model": "resnet"}, "vit")
    assert entry(fake)["nodes"] == 2


def test_after_takes_a_name(fake: FakeDaemon) -> None:
    jobs = [hpcdl.submit(["true"], name=name) for name in ("prepare", "other")]
    _ = hpcdl.submit(["true"], after=["prepare", jobs[1]])
    assert entry(fake)["after"] == [jobs[0].id, jobs[1].id]
    with pytest.raises(hpcdl.SubmitError, match="no job's name is 'prepaer': did you mean prepare"):
        _ = hpcdl.submit(["true"], after="prepaer")


def test_values_of_options_may_be_pythons(fake: FakeDaemon, tmp_path: Path) -> None:
    first = hpcdl.submit(["true"])
    deadline = datetime(2030, 5, 1, 8, 0, tzinfo=UTC)
    SUBMIT(
        ["true"], after=[first, 7], gpus=[1, 2, 4], time=timedelta(hours=1), deadline=deadline, cwd=tmp_path, mem=512,
        links={"wandb": "https://wandb.example/1"}, resumes=True, trainer_library=False, priority=-3, model=None,
    )  # fmt: skip
    sent = entry(fake)
    assert (sent["after"], sent["gpus_counts"], sent["time_s"]) == ([1, 7], [1, 2, 4], 3600.0)
    assert (sent["deadline"], sent["cwd"], sent["memory_mib"]) == (deadline.timestamp(), str(tmp_path), 512)
    assert (sent["resumes"], sent["trainer_library"], sent["priority"], sent["model"]) == ("", False, -3, None)
    assert sent["links"] == [["wandb", "https://wandb.example/1"]]


def test_every_typed_option_is_one() -> None:
    assert set(hpcdl.Options.__annotations__) <= options.names()
    assert {"gpus", "tag", "tags", "after", "python", "checkpoint_dir"} <= options.names()
    assert not {"array", "sweep", "file", "json", "strict", "args"} & options.names()


def test_a_gate_knows_the_frameworks_of_the_function(fake: FakeDaemon, tmp_path: Path) -> None:
    (tmp_path / "with_torch.py").write_text("def train():\n    import torch\n")
    code = "import hpcdl, with_torch; hpcdl.submit(with_torch.train, gate=True)"
    environ = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=120)
    words = ["-m", "hpcdl.trainer.gate", "--import", "torch", "-m", "hpcdl.trainer.call"]
    assert (entry(fake)["command"][1:7], entry(fake)["gate"]) == (words, True)
    assert call_of(fake)["path"][0] == str(tmp_path.resolve())


def test_a_sweep_is_one_array(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    activate(monkeypatch)
    swept: dict[str, list[object]] = {"lr": [0.1, "a,b"], "epochs": [1, 2]}
    jobs = hpcdl.map(train, swept, max_parallel=2)
    assert [job.id for job in jobs] == [1, 2, 3, 4]
    sent = entry(fake)
    assert sent["array"] == {"sweep": {"lr": ["0.1", "a,b"], "epochs": ["1", "2"]}, "max_parallel": 2}
    assert sent["command"][-4:] == ["--lr", "{lr}", "--epochs", "{epochs}"]
    assert call_of(fake)["sweep"] == {"lr": {"0.1": 0.1, "a,b": "a,b"}, "epochs": {"1": 1, "2": 2}}
    hpcdl.map(train, [{"lr": 1}, {"lr": 2}], epochs=5)
    assert entry(fake)["array"] == {"indices": "0-1"}
    assert entry(fake)["command"][-1] == "{index}"
    assert (call_of(fake)["keywords"], call_of(fake)["cases"][1]) == (
        {"epochs": 5},
        {"args": [], "keywords": {"lr": 2}},
    )
    hpcdl.map(["python", "train.py"], {"lr": [0.1, 0.2]})
    assert entry(fake)["command"] == ["python", "train.py", "--lr", "{lr}"]


def test_a_refused_submit_leaves_no_call(fake: FakeDaemon) -> None:
    refusal = json.dumps({"schema": 1, "error": "the queue is full", "code": "full"}).encode()
    fake.answers["/v1/jobs"] = (409, refusal)
    with pytest.raises(hpcdl.ApiError, match="the queue is full"):
        _ = hpcdl.submit(train, 1)
    assert not list(fake.home.glob("calls/*"))


def test_without_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCDL_HOME", str(tmp_path / "home"))
    with hpcdl.Executor() as pool:
        for ask in (hpcdl.jobs, lambda: hpcdl.job(1), lambda: pool.submit(train, 1), lambda: pool.map(train, [1])):
            with pytest.raises(hpcdl.DaemonAway, match="start one with: hpcdl daemon start"):
                ask()
    assert not (tmp_path / "home").exists()


def test_without_a_daemon_a_submit_is_spooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("HPCDL_HOME", str(home))
    with pytest.warns(UserWarning, match="1 job spooled as .*, which the next daemon of .* takes in") as warned:
        job = hpcdl.submit(train, 1)
    assert warned[0].filename == __file__, "it names the line that submits"
    with pytest.warns(UserWarning, match="2 jobs spooled as"):
        pair = hpcdl.map(train, {"lr": [1, 2]})
    assert len({job, *pair}) == 3
    assert repr(job) == "<hpcdl.Job in the spool>"
    for ask in (lambda: job.id, lambda: job.state):
        with pytest.raises(
            hpcdl.DaemonAway, match="the job is in the spool, and has an id once a daemon runs: start one"
        ):
            ask()
    fake = FakeDaemon(home).start()
    try:
        assert [each.id for each in (job, *pair)] == [1, 2, 3]
        assert (job.state, repr(pair[1])) == ("QUEUED", "<hpcdl.Job in the spool>")
        assert call_of(fake)["name"] == "train"
        sent = [body["request_id"] for method, path, body in fake.requests if (method, path) == ("POST", "/v1/jobs")]
        assert {f"{each}.json" for each in sent} == {path.name for path in (home / "spool").iterdir()}
    finally:
        fake.close()


def test_without_a_daemon_the_ledger_is_read(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (recorded / "lease.3").unlink()  # its daemon gave it back
    (recorded / "access.json").unlink()
    monkeypatch.setenv("HPCDL_HOME", str(recorded))
    done, queued = hpcdl.jobs(all=True, state="DONE")[0], hpcdl.jobs(state="QUEUED")[0]
    told = recwarn.pop()
    assert re.fullmatch(r"as of .*, no daemon: start one with: hpcdl daemon start.*", str(told.message))
    assert told.filename == __file__
    assert (done.wait(), hpcdl.job(done.id).state, hpcdl.job(queued.id).state) == ("DONE", "DONE", "QUEUED")
    with pytest.raises(hpcdl.DaemonAway, match=rf"job {queued.id} is QUEUED, and goes on once a daemon runs"):
        queued.wait()
    with pytest.raises(hpcdl.ApiError, match="there is no job 9999"):
        _ = hpcdl.job(9999)

    async def in_a_notebook() -> str:
        return done.state

    assert asyncio.run(in_a_notebook()) == "DONE"


def test_doubts_are_warnings(fake: FakeDaemon) -> None:
    with pytest.warns(UserWarning, match="no-such-program is not a program on PATH here"):
        job = hpcdl.submit(["no-such-program"])
    assert list(fake.world.jobs) == [job.id], "a doubt refuses nothing"


def test_a_module_that_submits_when_a_job_imports_it_is_told(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMPORTS, "train.py")
    with pytest.raises(hpcdl.SubmitError, match=r"train.py submits jobs when it is imported"):
        _ = hpcdl.submit(train, 1)
    assert not fake.world.jobs


def test_jobs_that_there_are(fake: FakeDaemon) -> None:
    fake.world.jobs |= {1: row(1, state="DONE"), 2: row(2, metric=0.25)}
    assert hpcdl.job(2) == hpcdl.jobs()[-1]
    assert hpcdl.job(2).metric == 0.25
    _ = hpcdl.jobs(all=True, name="t*", state="DONE,FAILED", tag="x")
    assert fake.requests[-1][1] == "/v1/jobs?all=1&state=DONE%2CFAILED&name=t%2A&tag=x&fields=id"
    assert hpcdl.job(2).state == "QUEUED"
    with pytest.raises(hpcdl.ApiError, match="there is no job 9"):
        _ = hpcdl.job(9)
    for none in ("train", None, 1.0):
        with pytest.raises(TypeError, match=f"a job's id is a number, not {none!r}: hpcdl.jobs"):
            _ = hpcdl.job(none)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"gpu": 1}, "gpu is no option of a job: did you mean gpus\\?"),
        ({"bogus": 1}, "bogus is no option of a job: there are acc"),
        ({"gpus": "many"}, "gpus: 'many' is not a number"),
        ({"signal": "sigterm"}, "signal: 'sigterm': did you mean SIGTERM\\?"),
        ({"hold": "yes"}, "hold must be True or False, got 'yes'"),
        ({"after": 1, "nodes": 0}, "nodes: "),
        ({"deadline": timedelta(hours=-2)}, "deadline: '-7200' is no deadline: give \\+2h"),
    ],
)
def test_an_executor_says_at_once_what_is_no_option(given: Any, why: str) -> None:
    with pytest.raises(hpcdl.SubmitError, match=why):
        hpcdl.Executor(**given)


def test_an_executor_needs_no_daemon_before_its_first_call() -> None:
    given: Any = {
        "python": "/opt/python3", "gpus": "1:2", "after": "prepare", "deadline": "+2h", "max_parallel": 3,
        "env": {"A": "1"}, "time": timedelta(hours=1), "output": Path("x-%j.out"),
    }  # fmt: skip
    executor = hpcdl.Executor(**given)
    assert isinstance(executor, futures.Executor)
    executor.shutdown()


def held(fake: FakeDaemon, job: hpcdl.Job[Any]) -> str:
    """Hold it after failures; why."""
    why = f"held after 50 failures without a checkpoint, at last: ended by SIGKILL: hpcdl resume {job.id} tries again"
    fake.world.jobs[job.id] |= {"state": "SUSPENDED", "held": True, "held_after": "50 failures", "reason": why}
    return why


def looks(fake: FakeDaemon) -> int:
    return sum(path.startswith("/v1/jobs?") for _, path, _ in fake.requests)


def test_a_future_says_once_that_its_job_is_held_after_failures(fake: FakeDaemon) -> None:
    job = hpcdl.submit(["true"])
    why = held(fake, job)
    future: futures.Future[Any] = futures.Future()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        follow(job, future)
        until(lambda: looks(fake) >= 3, "three looks")
        fake.world.jobs[job.id] |= {"state": "DONE", "held_after": None}
        assert future.result(timeout=60) is None
    assert [str(each.message) for each in said] == [f"job {job.id} is {why}"]


def test_a_future_raises_that_its_job_is_held_where_warnings_are_errors(fake: FakeDaemon) -> None:
    first, second = hpcdl.submit(["true"]), hpcdl.submit(["true"])
    why = held(fake, first)
    of_held, of_other = futures.Future[Any](), futures.Future[Any]()
    follow(second, of_other)
    follow(first, of_held)
    with pytest.raises(UserWarning, match=re.escape(why)):
        of_held.result(timeout=60)
    fake.world.jobs[second.id] |= {"state": "DONE"}
    assert of_other.result(timeout=60) is None


def test_wait_says_that_its_job_is_held_after_failures(fake: FakeDaemon) -> None:
    job = hpcdl.submit(["true"])
    why = held(fake, job)
    with pytest.warns(UserWarning, match=re.escape(f"job {job.id} is {why}")), pytest.raises(TimeoutError):
        job.wait(timeout=0)


FORKS = """
import os, sys
from concurrent.futures import Future
from pathlib import Path
from hpcdl.python.executor import follow
from hpcdl.python.handle import Job
home = Path(sys.argv[1])
follow(Job(1, home), Future())
if (child := os.fork()) == 0:
    future = Future()
    follow(Job(9, home), future)
    print(repr(future.exception(60)), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_process_waits_for_jobs_and_for_none_that_is_not_known(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1)
    done = subprocess.run([sys.executable, "-c", FORKS, fake.home], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ApiError('there is no job 9")


FORKS_MIDWAY = """
import os, sys, threading, time
from concurrent.futures import Future
from pathlib import Path
from hpcdl import client
from hpcdl.python.executor import follow
from hpcdl.python.handle import Job
make, begun, connecting = client.client_context, threading.Event(), threading.Event()
def slow(certificate):
    connecting.set()
    begun.set()
    time.sleep(0.3)  # OpenSSL's locks may be held
    connecting.clear()
    return make(certificate)
client.client_context = slow
follow(Job(1, Path(sys.argv[1])), Future())
begun.wait(60)
if (child := os.fork()) == 0:
    print(connecting.is_set(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_no_fork_comes_while_another_thread_connects(fake: FakeDaemon) -> None:
    fake.world.jobs[1] = row(1)
    done = subprocess.run([sys.executable, "-c", FORKS_MIDWAY, fake.home], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


WARNS = """
import os, sys, threading, warnings
from concurrent.futures import Future
from pathlib import Path
from hpcdl.python.executor import follow
from hpcdl.python.handle import Job
follow(Job(1, Path(sys.argv[1])), Future())
warnings.simplefilter("error")
def fork():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    return len(seen)
own, end = [fork()], threading.Event()
other = threading.Thread(target=end.wait)
other.start()
own.append(fork())
end.set()
other.join()
own.append(fork())
print(own)
"""


def test_python_warns_of_a_fork_beside_threads_of_the_user(fake: FakeDaemon) -> None:
    """And not beside ours alone."""
    fake.world.jobs[1] = row(1)
    done = subprocess.run([sys.executable, "-c", WARNS, fake.home], capture_output=True, text=True, timeout=120)
    warned = int(sys.version_info >= (3, 12))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"[0, {warned}, 0]\n", "")


# --- the package ------------------------------------------------------------------------------------------------------


def test_importing_hpcdl_loads_nothing_and_a_name_loads_its_part() -> None:
    code = (
        "import sys; import hpcdl; assert 'hpcdl.python' not in sys.modules and 'click' not in sys.modules\n"
        "hpcdl.steps; assert 'hpcdl.trainer' in sys.modules and 'click' not in sys.modules\n"
        "hpcdl.submit; assert 'hpcdl.python' in sys.modules\n"
        "missing = [name for name in dir(hpcdl) if not hasattr(hpcdl, name)]; print(missing, hasattr(hpcdl, 'bogus'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout == "[] False\n"


def test_the_package_has_what_its_parts_have() -> None:
    import hpcdl.python
    import hpcdl.trainer

    assert set(hpcdl.python.__all__) <= set(dir(hpcdl))
    assert set(dir(hpcdl)) & set(hpcdl.trainer.__all__) >= set(hpcdl.trainer.__all__) - {"Refused", "StaleIncarnation"}


def test_without_what_it_is_installed_with_it_is_one_error() -> None:
    code = "import hpcdl\ntry: hpcdl.submit\nexcept ImportError as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(
        "hpcdl.submit needs Python 3.11 and what hpcdl is installed with (pip install hpcdl):"
    )
