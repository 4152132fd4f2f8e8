"""The event of ids that are not given, since they were given before. `events` has it with all the others."""

from dataclasses import dataclass

from hpcdl.core.eventbase import Event


@dataclass(frozen=True, slots=True)
class IdsRaised(Event):
    """The next ids are these or higher: those below them may have been given, by a ledger that knew more than this one.

    `why`: `backup` (one was restored), `loss` (the ledger lost events, and its user went on without), `folders` (what
    lies in HPCDL_HOME is of jobs that the ledger does not know) or `site` (its file says where ids begin).
    `incarnation`, `beginning`: jobs that are known may have had so many of them. `detail`: in words, for people.
    """

    why: str
    job: int = 1
    pilot: int = 1
    notice: int = 1
    incarnation: int = 0
    beginning: int = 0
    detail: str = ""
