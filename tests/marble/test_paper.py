"""The paper's job sets 1 to 3 and its figure 5, step by step, through the real Controller."""

from itertools import pairwise

import pytest
import yaml

from hpcdl.config.layers import conf_folder
from hpcdl.config.profiles import load_profiles
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Role
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Plan, View
from hpcdl.core.model.profile import Profile, find_profile
from hpcdl.core.model.world import JobState
from hpcdl.marble import Marble
from tests.support.model_cluster import Cluster

LSF = {1: 958, 2: 940, 3: 707}
MARBLE = {1: 496, 2: 608, 3: 501}


def run_set(number: int, policy: str, *, gate: bool = False) -> tuple[Cluster, float]:
    profiles = load_profiles([conf_folder() / "profiles"])
    with (conf_folder() / "jobsets" / "marble.yaml").open() as file:
        jobs = yaml.safe_load(file)["sets"][number]["jobs"]
    specs = []
    for entry in jobs:
        profile = find_profile(profiles, entry["model"])
        assert isinstance(profile, Profile)
        key = profile.name.casefold()
        specs.append(
            JobSpec(
                ("train",), entry["model"], gpus_max=None, profile=key, steps=entry["steps"], grace_s=600, gate=gate
            )
        )
    cluster = Cluster({"n1": 6}, policy=policy, profiles=profiles)
    cluster.run(1.0)
    start = cluster.now
    cluster.submit(*specs)
    end = cluster.run_to_end()
    cluster.check_replay()
    assert set(cluster.states().values()) == {JobState.DONE}
    return cluster, end - start


def moments(cluster: Cluster) -> list[tuple[str, int, int, str]]:
    """(what, job, GPUs, role) of each start and suspend."""
    told = []
    for record in cluster.journal.records:
        event = record.event
        if isinstance(event, ev.StartRequested | ev.OpenRequested) and event.placement is not None:
            told.append(("start", event.job, len(event.placement.gpus), str(event.placement.role)))
        elif isinstance(event, ev.SuspendRequested):
            told.append(("suspend", event.job, 0, ""))
    return told


@pytest.mark.parametrize("number", [1, 2, 3])
def test_totals_of_the_paper(number: int) -> None:
    lsf, lsf_s = run_set(number, "fifo-exclusive")
    marble, marble_s = run_set(number, "marble")
    assert lsf_s == pytest.approx(LSF[number], rel=0.01)
    assert marble_s == pytest.approx(MARBLE[number], rel=0.01)
    assert all(what == "start" and gpus == 6 for what, _, gpus, _ in moments(lsf))
    assert sum(job.suspends for job in marble.world.jobs.values()) == {1: 0, 2: 1, 3: 1}[number]


def test_figure_5() -> None:
    cluster, _ = run_set(3, "marble")
    assert moments(cluster) == [
        ("start", 1, 3, "primary"),  # ResNet-50 is fastest on 3
        ("start", 2, 3, "secondary"),  # Inception-v3 wants 4
        ("suspend", 2, 0, ""),  # ResNet-50 is done: 3 free + 3 own
        ("start", 3, 2, "secondary"),  # VGG-16 beside it
        ("start", 2, 4, "primary"),
    ]
    resumed = [e.event for e in cluster.journal.records if isinstance(e.event, ev.StartRequested) and e.event.job == 2]
    before, after = (event.placement for event in resumed)
    assert before is not None
    assert after is not None
    assert set(before.gpus) < set(after.gpus)
    assert after.role is Role.PRIMARY


def test_figure_5_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[int, list[str]] = {1: [], 2: [], 3: []}
    decide = Marble.decide

    def listen(policy: Marble, view: View) -> Plan:
        plan = decide(policy, view)
        for target in plan.targets:
            if told[target.job][-1:] != [target.reason]:
                told[target.job].append(target.reason)
        return plan

    monkeypatch.setattr(Marble, "decide", listen)
    run_set(3, "marble")
    assert told[1] == ["primary on 3 of 6 GPUs of n1: its fastest number"]
    assert told[2] == [
        "secondary on 3 of 6 GPUs of n1: what is left; fastest on 4",
        "runs on 3 GPUs of n1 as secondary; will move to 4 GPUs: its fastest number, and they are free",
        "primary on 4 of 6 GPUs of n1: its fastest number",
    ]
    assert told[3][0] == "needs 1 GPU, 0 of 6 GPUs free"
    assert told[3][1] == "secondary on 2 of 6 GPUs of n1: what is left; fastest on 5"


def test_nothing_is_suspended_by_the_baseline_and_order_is_kept() -> None:
    cluster, _ = run_set(2, "fifo-exclusive")
    ended = [cluster.job(number).finished_at for number in (1, 2, 3)]
    started = [cluster.job(number).first_start_at for number in (1, 2, 3)]
    assert started == sorted(started)
    assert all(end <= start for (end, _), (_, start) in pairwise(zip(ended, started, strict=True)))


def test_warm_start_hides_the_start_up() -> None:
    plain, plain_s = run_set(3, "marble")
    warm, warm_s = run_set(3, "marble-warm", gate=True)
    assert warm_s < plain_s
    assert any(isinstance(record.event, ev.OpenRequested) for record in warm.journal.records)
    assert [m for m in moments(warm) if m[0] == "start"] == [m for m in moments(plain) if m[0] == "start"]
