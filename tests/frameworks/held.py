"""The table of what holds, at the end of `make test-frameworks`: a row a framework, from what its tests came to.

A test says what it holds of which framework, `@pytest.mark.holds("Horovod with torch", "suspend, resume bit-exact")`;
one that does not counts under the name of its file.
"""

import importlib.metadata
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ORDER = ("failed", "skipped", "passed")  # what tests of one claim came to: the first of these stands for all
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
        for outcome, word in (("passed", ""), ("failed", "FAILED: "), ("skipped", "not run: ")):
            if claims := [claim for claim, found in outcomes.items() if found == outcome]:
                yield word + "; ".join(claims)
        if self.others:
            passed = self.others.count("passed")
            yield f"{passed} of {len(self.others)} {'more ' if self.claims else ''}tests passed"
        if self.why:
            yield self.why


class Held:
    """The plugin that collects and prints it. `environment`: the folder of the frameworks' own virtual environment."""

    def __init__(self, environment: Path) -> None:
        self._environment = environment
        self._results: dict[str, tuple[pytest.Item, str, str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or report.outcome != "passed":  # a setup or a teardown counts where it goes wrong
            why = str(report.longrepr[2]) if report.outcome == "skipped" and isinstance(report.longrepr, tuple) else ""
            self._results[item.nodeid] = (item, report.outcome, why.removeprefix("Skipped: "))
        return report

    def rows(self) -> dict[str, Row]:
        """By framework."""
        rows: dict[str, Row] = {}
        for item, outcome, why in self._results.values():
            if item.path.parent != Path(__file__).parent:
                continue
            marks = [mark.args for mark in item.iter_markers("holds")]
            for name, *claims in marks or [(item.path.stem.removeprefix("test_"),)]:
                row = rows.setdefault(name, Row())
                row.why = row.why or why
                for claim in claims:
                    row.claims.setdefault(claim, set()).add(outcome if outcome in ORDER else "failed")
                if not claims:
                    row.others.append(outcome)
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


def _packages(folder: Path) -> list[importlib.metadata.Distribution]:
    return list(importlib.metadata.distributions(path=[str(folder)]))
