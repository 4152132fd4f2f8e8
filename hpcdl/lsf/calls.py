"""LSF's commands, run: those that only ask to wait are asked again, and a daemon that is away is told as that."""

import shutil
import time
from collections.abc import Callable, Sequence

from hpcdl.batch import TIMEOUT_S, BatchError, Completed, Run
from hpcdl.lsf.text import answered, down, transient, words

TRIES = 4
FIRST_PAUSE_S = 0.5
"""Twice as long before each further try."""

Which = Callable[[str], str | None]
Pause = Callable[[float], None]


def command_of(argv: Sequence[str]) -> str:
    """The command that is run, behind an `env -u NAME …` that hides variables from it."""
    at = 0
    if argv[0] == "env":
        at = 1
        while argv[at] == "-u":
            at += 2
    return argv[at]


class Calls:
    """Runs commands with patience. `which`: where a command is, or None; `pause`: waits so many seconds."""

    def __init__(self, run: Run, which: Which = shutil.which, pause: Pause = time.sleep) -> None:
        self._run = run
        self._which = which
        self._pause = pause

    def has(self, command: str) -> bool:
        """Whether there is such a command."""
        return self._which(command) is not None

    def once(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S, *, stdin: str = "") -> Completed:
        """As it is. Raises BatchError (`away`) where LSF does not answer, or says that its daemons do not."""
        try:
            done = self._run(argv, timeout_s, stdin=stdin)
        except BatchError as error:
            said = str(error).replace(argv[0], command_of(argv), 1)
            raise BatchError(said, away=error.away, again=error.again) from None
        if done.code != 0 and not transient(done) and down(done):
            raise BatchError(f"{command_of(argv)}: {words(done)}", away=True)
        return done

    def wait(self, tried: int) -> None:
        """Waits before the next try; `tried`: how often it was tried already."""
        self._pause(FIRST_PAUSE_S * 2 ** (tried - 1))

    def ask(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> Completed:
        """Asks what may be asked again: until it says something. What prints nothing to the end is given as it is.

        Raises BatchError (`away`) where LSF does not answer, or only asks to wait.
        """
        done = self.once(argv, timeout_s)
        for tried in range(1, TRIES):
            if answered(done) or (done.code != 0 and not transient(done)):
                return done
            self.wait(tried)
            done = self.once(argv, timeout_s)
        if not answered(done) and transient(done):
            raise BatchError(f"{argv[0]}: {words(done)}", away=True)
        return done
