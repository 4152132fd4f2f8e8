"""For all tests."""

import os
import signal
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

from tests.slurm.cluster import missing, version
from tests.support.extent import ALL
from tests.support.leftovers import Session
from tests.support.scene import Scenes

HERE = Path(__file__).parent
PURE = {
    *(
        "adaptive",
        "baselines",
        "batch",
        "config",
        "core",
        "deeppool",
        "estimators",
        "genie",
        "harvest",
        "marble",
        "milp",
    ),
    *("placement", "report", "sidecar", "sim", "solver", "wire"),
    *("test_docs.py", "test_floors.py", "test_packaging.py", "test_policy.py"),
}
SLOW = ("slurm", "system", "demo", "trainer", "agent", "allocation", "lsf", "daemon", "ledger", "milp", "sim")

# However slow the machine is, and the same cases each time unless more of them are asked for (tests/support/seeds.py).
settings.register_profile(
    "hpcdl",
    deadline=None,
    derandomize="HPCDL_TEST_SEEDS" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hpcdl")

# A CI that starts us in the background, or by nohup, has these ignored; every process of a test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


# Before anything is started: what tests start is to be known by it.
SESSION = Session()
LEFT = pytest.StashKey[list[str]]()
if SESSION.owner:
    # As ^C: the session then ends what its tests have started. A worker may just die: its session does it.
    signal.signal(signal.SIGTERM, SESSION.interrupt)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready() -> None:
    """A worker of pytest-xdist is there: this process runs no test itself."""
    SESSION.adopt()


def pytest_keyboard_interrupt() -> None:
    """Before fixtures would wait for what they cannot end, a daemon that is only starting, say."""
    SESSION.interrupted = True
    if SESSION.owner:
        SESSION.end()


def pytest_runtest_logstart(nodeid: str) -> None:
    SESSION.running.add(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    SESSION.running.discard(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        SESSION.failed.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A session that leaves something behind has failed, and not by tests that may run once more (.ci/pytest): those
    show it again if it is theirs."""
    if SESSION.owner and SESSION.interrupted:
        SESSION.end()
    elif SESSION.owner:
        SESSION.kept = session.exitstatus == pytest.ExitCode.TESTS_FAILED
        left = session.config.stash[LEFT] = SESSION.left()
        if not all(map(SESSION.failed_in_the_file_of, left)):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            SESSION.kept = True


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Scenes())
    config.addinivalue_line("markers", "pure: without a daemon, an agent or a trainer; by its folder")
    config.addinivalue_line("markers", "long: for `make test-all`, and where it is asked for by its name")
    config.addinivalue_line("markers", "real_slurm: runs on a real Slurm; given to whatever asks for such a cluster")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import what is left out anyway: each worker would take seconds for it."""
    if collection_path.parent != HERE or collection_path.name == "conftest.py":
        return None
    pure = collection_path.name in PURE
    return {"pure": not pure, "not pure": pure}.get(config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (ALL or any("::" in argument for argument in config.args)):
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    said = missing()
    for item in items:
        if _folder(item) in PURE:
            item.add_marker("pure")
        if "slurm_packages" in getattr(item, "fixturenames", ()):
            item.add_marker("real_slurm")  # the folder is a keyword of its own
            if said and os.environ.get("HPCDL_REQUIRE_SLURM") != "1":
                item.add_marker(pytest.mark.skip(reason="no real Slurm here: see the end"))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Files that wait for processes come first: a file is not shared out, so a long one that began last would end
    long after all others."""
    return SLOW.index(_folder(item)) if _folder(item) in SLOW else len(SLOW)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """How many tests ran on a real Slurm, for a suite that is green without them says less."""
    for left in terminalreporter.config.stash.get(LEFT, []):
        terminalreporter.write_line(f"LEFT BEHIND by these tests: {left}", red=True)
    if SESSION.kept:
        terminalreporter.write_line(f"the folders of failed tests are kept in {SESSION.folder}")
    counts = {
        outcome: sum("real_slurm" in getattr(report, "keywords", ()) for report in terminalreporter.getreports(outcome))
        for outcome in ("passed", "failed", "skipped")
    }
    if ran := counts["passed"] + counts["failed"]:
        terminalreporter.write_line(f"{ran} tests ran on a real Slurm {version()}")
    if counts["skipped"]:
        terminalreporter.write_line(f"{counts['skipped']} tests on a real Slurm were skipped: {missing()}")
