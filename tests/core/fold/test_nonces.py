"""Nonces of starts: drawn anew by each daemon, kept by each job, and numbers above those of unknown attempts."""

from hpcdl.core.fold.fold import Draft
from hpcdl.core.fold.incarnations import NONCES
from hpcdl.core.model import commands as cmd
from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.world import World, start_nonce
from tests.support.model_cluster import Cluster

SPEC = JobSpec(("train",), "j", gpus_max=2, steps=50, profile="plain")


def starts(model: Cluster) -> list[ev.StartRequested]:
    return [each.event for each in model.journal.records if isinstance(each.event, ev.StartRequested)]


def test_each_start_has_its_own_and_the_job_keeps_them() -> None:
    model = Cluster({"n1": 2})
    model.run(1.0)
    model.submit(SPEC, SPEC)
    model.run_until(lambda: model.job(1).running is not None)
    assert model.job(1).running.nonce == starts(model)[0].nonce
    model.restart_daemon()
    model.send(cmd.Hold(1))
    model.run_until(lambda: model.job(1).running is None)
    model.send(cmd.Release(1))
    model.run_to_end()
    nonces = [each.nonce for each in starts(model)]
    assert len(set(nonces)) == len(nonces) >= 3
    assert all(len(nonce) == 16 for nonce in nonces)
    for job in (1, 2):
        assert model.job(job).nonces == tuple(each.nonce for each in starts(model) if each.job == job)
    model.check_replay()


def test_two_daemons_draw_others_for_one_number_and_the_simulator_none() -> None:
    assert start_nonce(World(nonce="a"), 7, 2) == start_nonce(World(nonce="a"), 7, 2)
    known = {start_nonce(World(nonce=nonce), job, number) for nonce in "ab" for job in (7, 72) for number in (1, 22)}
    assert len(known) == 8
    assert start_nonce(World(), 7, 2) == ""


def test_the_last_ones_are_kept() -> None:
    draft = Draft(World())
    draft.add(ev.JobSubmitted(1, SPEC, "r"), 1.0)
    for number in range(1, NONCES + 9):
        draft.add(ev.StartRequested(1, number, ("n1",), None, f"{number}"), 2.0)
        draft.add(ev.Exited(1, number, 1, "n1", code=1), 3.0)
        draft.add(ev.IncarnationEnded(1, number, Cause.INFRASTRUCTURE), 4.0)
    assert draft.world.jobs[1].nonces == tuple(f"{number}" for number in range(9, NONCES + 9))
    draft.add(ev.StartRequested(1, NONCES + 9, ("n1",), None), 5.0)  # of an earlier version
    assert len(draft.world.jobs[1].nonces) == NONCES


def test_the_next_attempt_is_above_the_one_that_has_the_folder() -> None:
    draft = Draft(World())
    draft.add(ev.JobSubmitted(1, SPEC, "r"), 1.0)
    for number, claimed in ((1, 6), (7, 3)):
        draft.add(ev.StartRequested(1, number, ("n1",), None), 2.0)
        draft.add(ev.Exited(1, number, 1, "n1", code=75, claimed=claimed), 3.0)
        draft.add(ev.IncarnationEnded(1, number, Cause.INFRASTRUCTURE), 4.0)
        assert draft.world.jobs[1].last_incarnation == max(number, claimed)
