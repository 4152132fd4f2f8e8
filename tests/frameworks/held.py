"""The table of what holds, at the end of `make test-frameworks`: a row a framework, from what its tests came to.

A test says what it holds of which framework, `@pytest.mark.holds("Horovod with torch", "suspend, resume bit-exact")`;
one that does not counts under the name of its file.
"""

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# What tests of one claim came to: the first of these stands for all.
ORDER = ("failed", "skipped", "passed", "deselected")
NAMES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "flax": "flax",
    "horovod": "horovod",
    "hugging": "transformers",
    "jax": "jax",
    "keras": "keras",
    "lightning": "lightning",
    "optax": "optax",
    "orbax": "orbax-checkpoint",
    "pytorch": "torch",
    "submitit": "submitit",
    "tensorflow": "tensorflow-cpu",
    "torch": "torch",
    "torchrun": "torch",
    "transformers": "transformers",
}
"""What a framework's package is called."""


@dataclass
class Row:
    """What the tests of one framework came to: by claim, and of those that make none."""

    claims: dict[str, set[str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    why: str = ""  # it was skipped

    def cells(self) -> Iterator[str]:
        """Lines of the last column."""
        outcomes = {claim: next(each for each in ORDER if each in found) for claim, found in self.claims.items()}
        words = {"passed": "", "failed": "FAILED: ", "skipped": "not run: ", "deselected": "not selected: "}
        for outcome, word in words.items():
            if claims := [claim for claim, found in outcomes.items() if found == outcome]:
                yield word + "; ".join(claims)
        more = "more " if self.claims else ""
        deselected = self.others.count("deselected")
        if run := len(self.others) - deselected:
            yield f"{self.others.count('passed')} of {run} {more}tests passed"
        if deselected:
            yield f"{words['deselected']}{deselected} {more}{'tests' if deselected > 1 else 'test'}"
        if self.why:
            yield self.why


@dataclass(frozen=True)
class Outcome:
    """What one test came to. `marks`: of each framework that it is of, the name and what it claims."""

    marks: Sequence[Sequence[str]]
    outcome: str
    why: str = ""  # it was skipped


class Held:
    """The plugin that collects and prints it. `environment`: the folder of the frameworks' own virtual environment.

    Where workers of pytest-xdist run the tests, the process that prints has seen none: what a test claims comes with
    its report, and what is not selected at the end of a worker.
    """

    def __init__(self, environment: Path) -> None:
        self._environment = environment
        self._outcomes: dict[str, Outcome] = {}
        self._deselected: dict[str, Sequence[Sequence[str]]] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if item.path.parent == Path(__file__).parent:
            item.user_properties.append(("holds", _marks(item)))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        here = [item for item in items if item.path.parent == Path(__file__).parent]
        self._deselected |= {item.nodeid: _marks(item) for item in here}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        marks: Any = dict(report.user_properties).get("holds")
        # A setup or a teardown counts where it goes wrong.
        if marks and (report.when == "call" or report.outcome != "passed"):
            why = str(report.longrepr[2]) if report.skipped and isinstance(report.longrepr, (tuple, list)) else ""
            outcome = report.outcome if report.outcome in ORDER else "failed"
            self._outcomes[report.nodeid] = Outcome(marks, outcome, why.removeprefix("Skipped: "))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["deselected"] = self._deselected

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._deselected |= getattr(node, "workeroutput", {}).get("deselected", {})

    def rows(self) -> dict[str, Row]:
        """By framework; none where no test ran."""
        rows: dict[str, Row] = {}
        others = [Outcome(marks, "deselected") for marks in self._deselected.values()] if self._outcomes else []
        for each in (*self._outcomes.values(), *others):
            for name, *claims in each.marks:
                row = rows.setdefault(name, Row())
                row.why = row.why or each.why
                for claim in claims:
                    row.claims.setdefault(claim, set()).add(each.outcome)
                if not claims:
                    row.others.append(each.outcome)
        return rows

    def versions(self, name: str) -> str:
        """Of the packages that a row's name names."""
        (folder, *_) = [*self._environment.glob("lib/python*/site-packages"), self._environment]
        found = {each.metadata["Name"].lower().replace("_", "-"): each.version for each in _packages(folder)}
        packages = [NAMES[word] for word in name.lower().replace(",", " ").replace("_", " ").split() if word in NAMES]
        return ", ".join(f"{each} {found.get(each, 'not installed')}" for each in dict.fromkeys(packages))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows = self.rows()
        if not rows:
            return
        table = [
            (name, self.versions(name), cell) for name in sorted(rows, key=str.lower) for cell in rows[name].cells()
        ]
        widths = [max(len(row[column]) for row in table) for column in (0, 1)]
        terminalreporter.section("what holds")
        before = ""
        for name, versions, cell in table:
            first = (name, versions) if name != before else ("", "")
            before = name
            terminalreporter.write_line(f"{first[0]:{widths[0]}}  {first[1]:{widths[1]}}  {cell}".rstrip())


def _marks(item: pytest.Item) -> list[list[str]]:
    marks = [list(mark.args) for mark in item.iter_markers("holds")]
    return marks or [[item.path.stem.removeprefix("test_")]]


def _packages(folder: Path) -> list[importlib.metadata.Distribution]:
    return list(importlib.metadata.distributions(path=[str(folder)]))
