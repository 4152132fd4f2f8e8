"""Profiles that the daemon learns from a job that runs, keeps over its end, and shows; with real processes."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hpcdl.client import Client, ClientError, path_with
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.profile import MetricCurve, Observation, Observations, Profile, Timing
from hpcdl.core.model.world import GpuInfo, Job, JobProgress, Node, World
from hpcdl.daemon.api.estimates import metric_text
from hpcdl.daemon.api.profiles import profile_row, profile_rows
from hpcdl.daemon.learner import Learner, shape_of
from tests.support.waiting import until

SCRIPT = """
import time
import hpcdl.trainer as hpcdl

hpcdl.attach()
hpcdl.ready(0)
step = 0
while not hpcdl.should_suspend():
    step += 1
    hpcdl.progress(step, metric=1 - 1 / (1 + step / 50))
    time.sleep(0.01)
with hpcdl.checkpoint(step) as folder:
    (folder / "step").write_text(str(step))
hpcdl.exit_suspended()
"""


def run(home: Path, *words: str) -> str:
    command = [sys.executable, "-m", "hpcdl", "--home", str(home), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    (folder / "config.yaml").write_text("monitor_interval_s: 1.0\n")
    (folder / "config.yaml").chmod(0o600)
    run(folder, "daemon", "start", "--emulate-gpus", "2", "--node", "n1")
    yield folder
    with contextlib.suppress(subprocess.CalledProcessError):  # it is stopped already
        run(folder, "daemon", "stop", "--now")


def until_learnt(client: Client) -> dict[str, object]:
    def learnt() -> dict[str, object] | None:
        rows: list[dict[str, object]] = [row for row in client.get("/v1/profiles")["profiles"] if row["learnt"]]
        return rows[0] if rows and rows[0]["points"] else None

    return until(learnt, "a profile that was learnt")


@pytest.mark.timeout(300)
def test_what_a_job_shows_is_learnt_and_kept(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text(SCRIPT)
    run(home, "submit", "--model", "Tiny", "--accuracy", "0.999", "--", sys.executable, str(script))
    with Client(home) as client:
        row = until_learnt(client)
        assert row["name"] == "tiny @ fit.py"
        until(lambda: client.get("/v1/jobs/1")["job"]["step"] >= 100, "100 steps")
        with pytest.raises(ClientError, match="there is no profile 'nobody'"):
            client.get(path_with("/v1/profiles", name="nobody"))
    run(home, "daemon", "stop")
    run(home, "daemon", "start", "--emulate-gpus", "2", "--node", "n1")
    with Client(home) as client:
        again = until_learnt(client)
        client.request("POST", "/v1/jobs/1/cancel", {})  # so that both below show the same
        until(lambda: client.get("/v1/jobs/1")["job"]["state"] == "CANCELLED", "the job's end")
    assert again["name"] == "tiny @ fit.py"
    assert {"startup_s", "save_s"} <= dict(again["times"]).keys()  # type: ignore[call-overload]
    assert "tiny @ fit.py" in run(home, "profile", "ls")
    assert "tiny @ fit.py" in run(home, "profile", "ls", "--quiet").splitlines()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tiny.yaml").write_text(run(home, "profile", "show", "tiny"))
    profile = load_profiles([tmp_path / "out"])["tiny @ fit.py"]
    shown = json.loads(run(home, "profile", "show", "TINY @ fit.py", "--json"))["profiles"][0]["profile"]
    assert profile.rate(1) == pytest.approx(shown["points"][0]["rate"], rel=0.05)
    assert profile.spread > 0
    assert yaml.safe_load(run(home, "profile", "show", "tiny"))["profiles"]["tiny @ fit.py"]["save_s"] >= 0
    assert "Traceback" not in (home / "daemon.log").read_text()


def small_world() -> World:
    nodes = {}
    for name, kind, many in (("n1", "Tesla V100", 4), ("n2", "Tesla K80", 2), ("n3", "", 1)):
        gpus = tuple(GpuInfo(index, f"{name}-{index}", kind) for index in range(many))
        nodes[name] = Node(name, gpus)
    seen = {
        "a @ x.py": Observations((Observation("v100", 1, 2, 600, 60),), (Timing("save_s", 2, 9),)),
        "meta/b @ x.py": Observations((), (Timing("startup_s", 1, 9),)),
        "a @ y.py": Observations((Observation("v100", 1, 1, 60, 60),)),
    }
    return World(nodes=nodes, observed=seen)


def test_learnt_profiles_are_for_the_nodes_that_there_are() -> None:
    world = small_world()
    assert shape_of(world) == (4, 4, ("k80", "v100"))
    assert shape_of(World()) == (1, 1, ())
    learnt = Learner(lambda: world)
    seen = world.observed["a @ x.py"]
    profile = learnt.learn("a @ x.py", seen)
    assert profile is not None
    assert learnt.learn("a @ x.py", seen) is profile
    assert profile.save_s == 4.5
    assert profile.on("v100").rate(2) == pytest.approx(10, rel=0.02)
    assert max(gpus for _, gpus, _ in profile.points) == 4
    world.nodes["n4"] = Node("n4", tuple(GpuInfo(index, str(index), "H100") for index in range(8)))
    wider = learnt.learn("a @ x.py", seen)
    assert wider is not None
    assert max(gpus for _, gpus, _ in wider.points) == 8
    assert [kind for kind, _ in wider.kinds] == ["h100", "k80", "v100"]


def test_a_metric_is_foreseen_by_optimus_fit() -> None:
    profiles = Learner(World).profiles({})
    assert profiles.foresee is not None
    points = tuple((step, 1 - 1 / (1 + step / 50)) for step in range(10, 200, 10))
    steps = profiles.foresee(points, 0.95, ())
    assert steps is not None
    assert steps == pytest.approx(950, rel=0.05)
    assert profiles.foresee((), 0.95, points) == pytest.approx(steps), "those of an earlier job come first"
    twice = tuple((2 * step, metric) for step, metric in points[:8])
    assert profiles.foresee(twice, 0.75, points) == pytest.approx(300, rel=0.05)


def test_what_the_length_of_a_job_with_a_target_rests_on() -> None:
    world = small_world()
    told = Profile(
        "told", ((1, 1, 1.0),), accuracy=tuple((step, 1 - 1 / (1 + step / 50)) for step in range(0, 500, 50))
    )
    profiles = Learner(lambda: world).profiles({"told": told})
    spec = JobSpec(("python", "x.py"), "a", accuracy_target=0.95)
    job = Job(7, spec, 0.0)
    assert metric_text(world, job, profiles) == "when its metric reaches 0.95 is not known yet"
    named = replace(job, spec=replace(spec, profile="told"))
    assert metric_text(world, named, profiles).endswith("reach 0.95 after 950 steps: by the curve of its profile")
    world.observed["a @ x.py"] = replace(world.observed["a @ x.py"], metric=MetricCurve(3, told.accuracy))
    assert metric_text(world, named, profiles).endswith("reach 0.95 after 950 steps: by the curve of job 3")
    own = replace(job, progress=JobProgress(100, accuracy=((50, 0.333), (100, 0.5))))
    said = metric_text(world, own, profiles)
    assert said.endswith("steps: by 2 reports of its own and the curve of job 3")
    assert 1200 < int(said.split("after ")[1].split()[0]) < 2100, "it takes twice as long to as much"
    assert metric_text(world, replace(own, progress=JobProgress(100, 200)), profiles) == ""
    assert metric_text(world, replace(job, spec=replace(spec, accuracy_target=None)), profiles) == ""
    row = profile_row(world, profiles, "a @ x.py")
    assert row is not None
    assert row["accuracy"][1] == row["profile"]["accuracy"][1] == {"step": 50, "metric": 0.5}


def test_rows_of_profiles() -> None:
    world = small_world()
    file = Profile("Made", ((1, 1, 2.0), (1, 2, 3.0)), aliases=("mk",))
    profiles = Learner(lambda: world).profiles({"made": file, "mk": file})
    rows = profile_rows(world, profiles)
    assert [(row["name"], row["learnt"]) for row in rows] == [("Made", False), ("a @ x.py", True), ("a @ y.py", True)]
    assert rows[0]["points"][1] == {"kind": "", "nodes": 1, "gpus": 2, "rate": 3.0, "seen_s": None}
    assert rows[1]["points"] == [{"kind": "v100", "nodes": 1, "gpus": 2, "rate": 10.0, "seen_s": 60}]
    assert rows[1]["times"] == {"save_s": 4.5}
    made = profile_row(world, profiles, "MK")
    assert made is not None
    assert Profile.from_mapping("Made", made["profile"]) == file
    last = profile_row(world, profiles, "a")
    assert last is not None
    assert last["name"] == "a @ y.py"
    exact = profile_row(world, profiles, "A @ x.py")
    assert exact is not None
    assert exact["profile"]["spread"] > 0
    assert profile_row(world, profiles, "meta/b") is None
    assert profile_row(world, Profiles(), "a") is None
    assert JobSpec(("python", "x.py"), "n", model="Meta/B").learns_as in world.observed
