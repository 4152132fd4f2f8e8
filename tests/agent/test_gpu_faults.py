"""What an agent tells of its GPUs' health, and when."""

from hpcdl.agent.gpus import AGAIN_S, BLAMED_S, Faults
from hpcdl.core.model.health import Health

SAID = "reported by the driver"


def test_xids_that_say_something_of_the_gpu_are_told() -> None:
    faults = Faults()
    assert faults.look(None, (13, 31, 79, 43), 0.0) == [("xid 79", SAID)]
    assert faults.look(None, (), 1.0) == []
    assert faults.shown(None) == Health(xids=(13, 31, 79, 43))
    assert faults.shown(Health(3)) == Health(3, xids=(13, 31, 79, 43))
    for number in range(20):
        faults.look(None, (number,), 2.0)
    assert faults.shown(None) == Health(xids=tuple(range(12, 20)))


def test_only_new_ecc_errors_are_told() -> None:
    faults = Faults()
    assert faults.look(Health(ecc_uncorrected=7), (), 0.0) == [], "they were there before"
    assert faults.look(Health(), (), 1.0) == []
    assert faults.look(Health(ecc_uncorrected=9), (), 2.0) == [("ecc", "9 uncorrectable errors, 7 before")]
    assert faults.look(Health(ecc_uncorrected=0), (), 3.0) == [], "it was reset"
    assert faults.look(Health(ecc_uncorrected=1), (), 4.0) == [("ecc", "1 uncorrectable errors, 0 before")]


def test_what_holds_is_told_again_at_times() -> None:
    faults = Faults()
    failed = Health(remap_failed=True, remap_pending=True)
    assert [fault for fault, _ in faults.look(failed, (), 0.0)] == ["remap failed", "remap pending"]
    assert faults.look(failed, (), AGAIN_S - 1) == []
    assert [fault for fault, _ in faults.look(failed, (), AGAIN_S)] == ["remap failed", "remap pending"]
    assert faults.look(Health(remap_failed=False), (), AGAIN_S + 1) == []
    assert faults.look(failed, (), AGAIN_S + 2) != [], "it came back"


def test_a_trainer_that_ends_right_after_a_fault_is_not_blamed() -> None:
    faults = Faults()
    faults.look(Health(remap_pending=True), (63,), 0.0)
    assert faults.blamed(1.0) == "", "jobs survive that"
    faults.look(None, (48,), 10.0)
    assert faults.blamed(11.0) == "xid 48: an uncorrectable (double-bit) ECC error"
    assert faults.blamed(10.0 + BLAMED_S) == ""
