"""The documents tell of every command, setting, state and event, and their links lead somewhere.

`python -m tests.test_docs` writes the table in docs/settings.md anew.
"""

import ast
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path

import click
import pytest

from hpcdl.batch.limits import PilotLimits
from hpcdl.batch.site import SiteFile
from hpcdl.cli.columns import JOBS, Kind
from hpcdl.cli.root import COMMANDS, cli
from hpcdl.cli.tables import GPUS, NODES
from hpcdl.config.layers import SettingLimits
from hpcdl.config.settings import SETTINGS, Config
from hpcdl.core.model.events import KINDS
from hpcdl.core.model.incarnation import Cause, IncarnationState, Purpose, Role
from hpcdl.core.model.job import SIGNAL_PRESETS
from hpcdl.core.model.world import JobState
from hpcdl.daemon.api.rows import JOB_KEYS
from hpcdl.policies import all_policies

ROOT = Path(__file__).parents[1]
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
COMMON = {"--json", "--quiet", "--help", "--home", "--version"}
BATCH = ("slurm.md", "lsf.md", "admins.md", "allocations.md", "batchscripts.md", "operations.md")
"""The documents about batch systems, and for whoever runs a daemon."""


def text_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            own = {name for param in command.params for name in param.opts if name.startswith("--")}
            if command.invoke_without_command and own - COMMON:
                yield f"hpcdl {name}", command  # a command of its own, not only a name for those below
            for below in command.commands.values():
                yield f"hpcdl {name} {below.name}", below
        else:
            yield f"hpcdl {name}", command


@pytest.mark.parametrize("path, command", list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_and_option_is_documented(path: str, command: click.Command) -> None:
    told = section(text_of("commands.md"), path)
    assert path in told, "no example"
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    names = {name for each in options for name in each.opts if name.startswith("--")} - COMMON
    shared = section(text_of("commands.md"), "Naming jobs") if "(#naming-jobs)" in told else ""
    shared += section(text_of("commands.md"), "hpcdl submit") if "(#hpcdl-submit)" in told else ""
    assert {name for name in names if not re.search(rf"{name}\b", told + shared)} == set()
    known = names | COMMON
    assert set(re.findall(r"`(--[a-z-]+)", told)) <= known, "an option that there is not"


def test_no_command_is_documented_that_there_is_not() -> None:
    told = set(re.findall(r"^### (hpcdl .*)$", text_of("commands.md"), re.MULTILINE))
    assert told == {path for path, _ in commands()}
    assert all(f"`{name}" in text_of("commands.md") for name in COMMON - {"--help", "--version"})


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


@pytest.mark.parametrize(
    "title, names",
    [
        ("States of a job", JobState),
        ("States of an attempt", IncarnationState),
        ("Causes", Cause),
        ("Why a suspend was asked for", Purpose),
        ("Roles", Role),
        ("Signals", SIGNAL_PRESETS),
        ("Events", KINDS),
    ],
)
def test_the_vocabulary_is_complete(title: str, names: Iterable[str | StrEnum]) -> None:
    # Events are registered in the order in which their modules happen to be imported.
    assert sorted(first_cells(section(text_of("vocabulary.md"), title))) == sorted(str(name) for name in names)


def number(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:g}"


def allowed(limits: SettingLimits) -> str:
    if limits.kind in (str, bool):
        return limits.said
    unit = " s" if limits.unit == "s" else ""
    return f"{number(limits.low)} to {number(limits.high)}{unit}"


def meaning(setting: str) -> str:
    """The comment above the setting in conf/hpcdl.yaml, without the range that the table has in a column of its own."""
    lines = (ROOT / "conf" / "hpcdl.yaml").read_text(encoding="utf-8").splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith(f"{setting}:"))
    comment: list[str] = []
    for line in reversed(lines[:place]):
        if not line.startswith("#") or line.startswith("# ---"):
            break
        comment.insert(0, line.removeprefix("#").strip())
    text = " ".join(comment)
    return re.sub(r"; [\d.]+ to [\d.]+\d(?: \(30 days\)| failures)?(?=[.,])", "", text)


def settings_table() -> str:
    defaults = Config().values()
    rows = ["| setting | default | may be | what it is |", "|---|---|---|---|"]
    for setting, limits in SETTINGS.items():
        value = defaults[setting]
        if isinstance(value, bool):
            value = "on" if value else "off"
        default = "null" if value is None else number(value) if isinstance(value, int | float) else value
        rows.append(f"| `{setting}` | {default} | {allowed(limits)} | {meaning(setting)} |")
    return "\n".join(rows) + "\n"


def test_every_setting_is_documented_as_it_is() -> None:
    assert text_of("settings.md").endswith("\n\n" + settings_table()), "run: python -m tests.test_docs"
    assert all(meaning(setting) for setting in SETTINGS)


def anchors(text: str) -> set[str]:
    """As GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{document.name}: {target}"
        assert file.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{document.name}: {target}"


def defined_in(file: Path) -> set[str]:
    """All names that a module defines: functions, classes, methods, fields, constants."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_what_the_contributor_guide_names_is_where_it_says() -> None:
    links = re.findall(r"\[`([^`]+)`[^]]*\]\((\.\./[\w/.]+\.py)\)", text_of("contributor-guide.md"))
    assert len(links) > 50
    wrong = []
    for name, target in links:
        file = (ROOT / "docs" / target).resolve()
        if "/" not in name and not name.endswith(".py") and not set(name.split(".")) <= defined_in(file):
            wrong.append((name, target))
    assert wrong == []


def test_the_readme_is_short_and_leads_to_the_index() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) < 900
    assert [line for line in readme.splitlines() if len(line) >= 100] == []
    assert "](docs/README.md)" in readme


def test_the_readme_says_what_it_is_good_for_before_its_papers_and_where_others_are_better() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.*)$", readme, re.MULTILINE)
    assert titles.index("What it does that others do not") < titles.index("Papers")
    assert "| hpcdl |" not in section(readme, "What it does that others do not"), "no row that it wins"
    peers = re.search(r"^\| \| is better at \|\n\|---\|---\|\n((?:\|.*\n)+)", readme, re.MULTILINE)
    assert peers is not None
    assert len(peers[1].splitlines()) >= 4


def test_what_the_demo_and_the_documents_write_is_ignored_by_git() -> None:
    ignored = set((ROOT / ".gitignore").read_text(encoding="utf-8").splitlines())
    assert {"/hpcdl-demo-report/", "/gpus.html"} <= ignored
    written = re.findall(r"(?:-o|--output) (\w[\w.-]*\.\w+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {f"/{name}" for name in written} <= ignored


STRANGE = re.compile(
    r"foresee|foreseen|foretold|foretell|\breckon|goes through them|not its fault|what it came to|became of|"
    r"at the submit\b|is told\b|\bincarnation \d",
    re.IGNORECASE,
)
"""Words that readers had to read twice."""


def test_what_commands_print_is_plain() -> None:
    found = []
    for path, command in commands():
        told = command.get_help(click.Context(command, info_name=path))
        found += [(path, each) for each in STRANGE.findall(" ".join(told.split()))]
    for file in sorted((ROOT / "hpcdl").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        silent = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
                found += [(f"{file.name}:{node.lineno}", each) for each in STRANGE.findall(node.value)]
    assert found == []


@pytest.mark.parametrize("word", ["incarnation", "JCT", "avoided", "attempt", "excluded"])
def test_words_of_tables_and_json_are_explained(word: str) -> None:
    assert re.search(rf"^\|.*\b{word}\b", section(text_of("vocabulary.md"), "Vocabulary"), re.MULTILINE)


def test_every_key_of_a_job_is_documented() -> None:
    assert [key for key in sorted(JOB_KEYS) if not re.search(rf"\b{key}\b", text_of("api.md"))] == []


@pytest.mark.parametrize("kind", (JOBS, NODES, GPUS), ids=lambda kind: kind.what)
def test_every_column_is_documented(kind: Kind) -> None:
    listed = section(text_of("commands.md"), "hpcdl ls")
    assert [name for name in kind.columns if not re.search(rf"[`\s]{name}[`\s]", listed)] == []


def test_every_policy_is_described() -> None:
    described = text_of("policies.md")
    assert [name for name in all_policies().names() if f"`{name}`" not in described] == []


def test_the_architecture_has_every_folder() -> None:
    folders = {file.parent for file in (ROOT / "hpcdl").rglob("__init__.py")} - {ROOT / "hpcdl"}
    shown = text_of("architecture.md")
    assert sorted(each.name for each in folders if f"{each.name}/" not in shown) == []


def test_the_index_has_every_document() -> None:
    index = text_of("README.md")
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"]({path.name})" not in index]
    assert missing == ["README.md"]


def quoted(text: str) -> Iterator[list[str]]:
    """The commands of hpcdl in code and in code blocks, as words, up to where the shell or another program goes on."""
    blocks = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    told = re.findall(r"^(?:\$ )?([^`\n]+)$", blocks, re.MULTILINE)
    told += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in told:
        if not re.match(r"([A-Z_]+=\S* )*hpcdl (?!(was|on) )[a-z-]", line):  # messages begin so
            continue
        lexer = shlex.shlex(re.sub(r"\s*…", "", line), posix=True, punctuation_chars=True)
        words = list(lexer)
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        ends = (at for at, word in enumerate(words) if word == "--" or set(word) <= set("|;&<>()"))
        yield words[1 : next(ends, None)]


def unknown(words: list[str]) -> list[str]:
    """What of a command there is not: its name, or options."""
    context = click.Context(cli)
    command: click.Command | None = cli
    params, rest = list(cli.params), list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return [name]
        command, params = found, [*params, *found.params]
    options = {"--help", *(name for param in params for name in (*param.opts, *param.secondary_opts))}
    given = [word.partition("=")[0] for word in rest if re.match(r"--[a-z]|-[a-z]\b", word)]
    return [option for option in given if option not in options]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_commands_in_documents_exist(path: Path) -> None:
    told = list(quoted(path.read_text(encoding="utf-8")))
    assert {" ".join(words): wrong for words in told if (wrong := unknown(words))} == {}


def test_documents_show_commands() -> None:
    assert [name for name in BATCH if len(list(quoted(text_of(name)))) < 4] == []


def test_a_wrong_command_would_be_seen() -> None:
    text = "`hpcdl lss`, `hpcdl pilots --cancell p1`, `hpcdl daemon begin now`\n```\n$ X=1 hpcdl ls --al | head\n```\n"
    assert [unknown(words) for words in quoted(text)] == [["--al"], ["lss"], ["--cancell"], ["begin"]]


@pytest.mark.parametrize("name", BATCH)
def test_files_variables_and_settings_in_documents_exist(name: str) -> None:
    text = text_of(name)
    for path in re.findall(r"\b(?:jobscripts|tests|conf|benchmarks|docs)/[\w./-]*\w", text):
        assert (ROOT / path).exists(), path
    ours = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("hpcdl", "jobscripts")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".slurm", ".lsf", "") and path.is_file() and os.access(path, os.R_OK)
    )
    settings = {f"HPCDL_{setting.upper()}" for setting in SETTINGS}
    assert [each for each in set(re.findall(r"\bHPCDL_[A-Z_]+", text)) - settings if each not in ours] == []
    keys = {field.name for kind in (PilotLimits, SiteFile) for field in fields(kind)} | {"kind", "charge"}
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        assert set(re.findall(r"^(\w+):", block, re.MULTILINE)) <= {*SETTINGS, *keys}


def test_the_picture_is_small() -> None:
    picture = ROOT / "docs" / "demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 200 << 10


if __name__ == "__main__":
    page = ROOT / "docs" / "settings.md"
    before, _, _ = page.read_text(encoding="utf-8").partition("| setting |")
    page.write_text(before.rstrip("\n") + "\n\n" + settings_table(), encoding="utf-8")
