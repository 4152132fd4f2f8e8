"""A run that answers from a script, for tests of the LSF adapter."""

import time
from collections.abc import Mapping, Sequence

from hpcdl.batch.adapter import TIMEOUT_S, Completed, PilotScript
from hpcdl.lsf.adapter import Lsf, LsfSettings
from hpcdl.lsf.jobs import FIELDS

NOW = time.mktime((2026, 1, 21, 22, 20, 0, 0, 0, -1))
BHOSTS = (
    "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV \n"
    "n1.x               ok                 -      4      0      0      0      0      0\n"
    "n2.x               ok                 -      4      4      4      0      0      0\n"
    "n3.x               ok                 -      4      0      0      0      0      0\n"
)
BQUEUES = (
    "QUEUE: fill\n  -- gaps\nPRIO NICE STATUS          MAX\n 5    0  Open:Active       -\n"
    " RUNLIMIT\n 60.0 min of n1\nSCHEDULING POLICIES:  BACKFILL\nHOSTS:  all\n\n"
    "QUEUE: killable\n  -- x\nPRIO NICE STATUS          MAX\n 1    0  Open:Active       -\n"
    "SCHEDULING POLICIES:  PREEMPTABLE\nTERMINATE_WHEN:  PREEMPT\n"
)
GPUS = "HOST_NAME gpu_id gpu_model gpu_driver gpu_factor numa_id vendor\n" + "".join(
    f"n{host}.x 0 TeslaV100 1 7 0 Nvidia\n        1 TeslaV100 1 7 0 Nvidia\n" for host in (1, 2, 3)
)
USAGE = Completed("", "bjobs: invalid option -- 'o'\nUsage: bjobs [-h] [-V] [-w |-l]\n", 255)
SCRIPT = PilotScript(("hpcdl", "allocation"), "hpcdl:ab:p7", "hpcdl-p7", "/tmp/p7.log")
TAKEN = Completed("Job <113> is submitted to queue <fill>.\n", "", 0)
PLAIN = LsfSettings()
WAIT = Completed("", "Cannot connect to LSF. Please wait ...\n", 255)
NOTHING = Completed("", "", 0)


def fields(**values: str) -> str:
    return "^".join(values.get(name, "-") for name in FIELDS) + "\n"


def json_of(**values: str) -> str:
    body = ", ".join(f'"{name.upper()}": "{value}"' for name, value in values.items())
    return '{"COMMAND":"bjobs","JOBS":1,"RECORDS":[' + (f"{{{body}}}" if values else "") + "]}"


Answer = Completed | str | Exception | list[Completed | str]


class Fake:
    """Answers by the first words of a command, each answer in its turn and the last one for good."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = {
            "bhosts": BHOSTS,
            "bqueues": BQUEUES,
            "lshosts": GPUS,
            "bjobs": json_of(),
            **answers,
        }
        self.asked: list[list[str]] = []
        self.stdin: list[str] = []
        self.pauses: list[float] = []

    def __call__(
        self,
        argv: Sequence[str],
        timeout_s: float = TIMEOUT_S,
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        argv = argv[argv.index("bsub") :] if argv[0] == "env" else argv
        self.asked.append(list(argv))
        self.stdin.append(stdin)
        answer = self.answers[argv[0]]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Completed) else Completed(answer, "", 0)

    def of(self, command: str) -> list[list[str]]:
        return [argv for argv in self.asked if argv[0] == command]

    def lsf(
        self,
        *,
        ways: LsfSettings = PLAIN,
        without: Sequence[str] = ("jsrun", "jobstat"),
        host: str = "n1.x",
        environ: Mapping[str, str] | None = None,
    ) -> Lsf:
        return Lsf(
            self,
            now=lambda: NOW,
            ways=ways,
            which=lambda name: None if name in without else f"/lsf/{name}",
            pause=self.pauses.append,
            host_name=lambda: host,
            environ=environ or {},
        )


def relative(**answers: Answer) -> Fake:
    """An LSF-like system: only plain, -l and -UF output."""
    text = (
        "\nJob <113>, Job Name <hpcdl:ab:p7>, User <ann>, Project <default>, Status <RUN>, Queue <killable>, "
        "Command <x>\nWed Jan 21 22:10:00: Submitted from host <login1>, CWD <$HOME>;\n"
        "Wed Jan 21 22:12:00: Started 4 Task(s) on Host(s) <n1.x> <n1.x> <n1.x> <n1.x>, Allocated 4 Slot(s);\n"
        "\n RUNLIMIT                \n 30.0 min of login1       \n"
    )
    forms: Answer = [USAGE, USAGE, USAGE, text]
    return Fake(**{"bjobs": forms, **answers})
