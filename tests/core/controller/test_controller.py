"""What the Controller remembers across a commit that failed."""

from collections.abc import Sequence

import pytest

from hpcdl.core.controller.controller import Controller
from hpcdl.core.controller.journal import JournalError, MemoryJournal, Stamped
from hpcdl.core.model.commands import Request
from hpcdl.core.model.events import Recorded, TroubleSeen
from hpcdl.core.model.plan import Plan, Policies, Profiles, View


class FullOnce(MemoryJournal):
    """Refuses the first append."""

    full = True

    def append(
        self, events: Sequence[Stamped], requests: Sequence[Request] = (), settled: Sequence[int] = ()
    ) -> tuple[list[Recorded], list[Request]]:
        if self.full:
            self.full = False
            raise JournalError("the disk is full")
        return super().append(events, requests, settled)


class Broken:
    """A policy that fails."""

    name = "marble"

    def decide(self, view: View) -> Plan:
        raise RuntimeError("no idea")


def test_trouble_that_was_not_recorded_is_told_at_the_next_decision() -> None:
    policies = Policies()
    policies.register("marble", Broken)
    journal = FullOnce()
    controller = Controller(journal, policies, Profiles({}))
    with pytest.raises(JournalError):
        controller.decide(1.0)
    for now in (2.0, 3.0):
        controller.decide(now)
    told = [record.event for record in journal.records]
    assert told == [TroubleSeen("policy marble", "failed (RuntimeError): no idea")]
