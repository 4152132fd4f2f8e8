"""The architecture, enforced: who may import whom, what is pure, and where the time is read."""

import ast
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hpcdl.config.layers import BATCH_SYSTEMS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpcdl"

# Every package and module directly under hpcdl/, by floor. One imports from itself and from the floors below; never
# from another one of its floor.
FLOORS = {
    0: ["core", "solver"],
    1: ["estimators", "placement", "report", "wire"],
    2: ["adaptive", "baselines", "client", "config", "deeppool", "genie", "ledger", "marble", "milp", "sidecar"],
    3: ["batch", "harvest", "policies", "policy"],
    4: ["agent", "sim", *BATCH_SYSTEMS],
    5: ["allocation"],
    6: ["daemon"],
    7: ["demo"],
    8: ["__main__", "cli"],
    9: ["python"],
}
# Inside core/: values, then what events do to them, then which events follow, then what decides.
CORE_FLOORS = ["model", "fold", "rules", "controller"]
# `python -m hpcdl` is the command, the command `hpcdl demo` is the demo, and `harvest` is one of the policies.
SAME_FLOOR = {("__main__", "cli"), ("policies", "harvest")}
# Beside the floors: a training script imports it, so it needs nothing. Programs from floor 3 on read what it writes.
BESIDE = "trainer"
BESIDE_IS_SEEN_FROM = 3

# No clock, file, socket, process or thread; the same values in give the same values out.
PURE = {
    "core",
    "solver",
    "estimators",
    "placement",
    "report",
    "adaptive",
    "baselines",
    "deeppool",
    "sidecar",
    "genie",
    "harvest",
    "marble",
}
PURE_FILES = {"batch/holes.py", "batch/limits.py", "batch/pilots.py"}
IMPURE = {
    "a clock": {"sched", "time"},
    "chance": {"random", "secrets", "uuid"},
    "files": {"fcntl", "fileinput", "glob", "io", "mmap", "os", "pathlib", "shelve", "shutil", "sqlite3", "tempfile"},
    "the network": {"ftplib", "http", "select", "selectors", "smtplib", "socket", "socketserver", "ssl", "urllib"},
    "processes": {"_posixsubprocess", "multiprocessing", "pty", "resource", "signal", "subprocess"},
    "threads": {"_thread", "asyncio", "concurrent", "queue", "threading"},
    "this machine": {"ctypes", "getpass", "locale", "logging", "platform", "pwd", "sysconfig"},
}
IMPURE_CALLS = {"open", "print", "input", "breakpoint", "exec", "eval", "__import__"}
STDLIB_ONLY = {"core": {"msgspec"}, "report": set(), "trainer": set(), "wire": {"msgspec"}}
"""And of others these, at their import: msgspec makes a class thirty times faster than `dataclass`, and a daemon or an
agent needs hundreds before it begins. wire/ makes a certificate with cryptography, later."""
BARE = ("hpcdl", "hpcdl.trainer", "hpcdl.trainer.gate", "hpcdl.agent.supervisor.__main__")
"""What runs where nothing is installed: in a user's environment, and as a supervisor."""


@dataclass(frozen=True, slots=True)
class Import:
    file: Path
    line: int
    name: str  # a.b.c, as far as it is a module's
    lazy: bool  # inside a function, or for the type checker only

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.name}"


def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def home_of(file: Path) -> str:
    """The package or module directly under hpcdl/ that a file belongs to."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(file: Path) -> ast.Module:
    """Read once: several tests walk all of them."""
    return ast.parse(file.read_text())


@cache
def imports(file: Path) -> tuple[Import, ...]:
    return tuple(_imports(file, tree(file), lazy=False))


def _imports(file: Path, node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, lazy)
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            if module == "hpcdl":
                for alias in child.names:
                    yield Import(file, child.lineno, f"hpcdl.{alias.name}", lazy)
            else:
                yield Import(file, child.lineno, module, lazy)
        else:
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing = isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
            yield from _imports(file, child, lazy=lazy or function or typing)


def floor_of(name: str) -> int:
    for floor, names in FLOORS.items():
        if name in names:
            return floor
    raise AssertionError(
        f"hpcdl/{name} is on no floor: put it into FLOORS in {Path(__file__).name}, and say so in docs/"
    )


def wrong(item: Import) -> str | None:
    """Why an import breaks the floors, or None."""
    here = home_of(item.file)
    if item.name.startswith("."):
        return f"{item}: write it from hpcdl on, so that its floor can be read"
    parts = item.name.split(".")
    if parts[0] != "hpcdl" or here == "__init__":
        return None
    there = parts[1] if len(parts) > 1 else "__init__"
    if there in (here, "__init__", "__version__"):
        return None
    if here == BESIDE:
        return f"{item}: {BESIDE}/ stands beside the floors and imports nothing of hpcdl but itself"
    if there == BESIDE:
        if floor_of(here) >= BESIDE_IS_SEEN_FROM:
            return None
        return f"{item}: {BESIDE}/ is only seen from floor {BESIDE_IS_SEEN_FROM} on, {here} is on {floor_of(here)}"
    mine, its = floor_of(here), floor_of(there)
    if its > mine:
        return f"{item}: {here} is on floor {mine}, {there} above it on floor {its}; imports go down only"
    if its == mine and (here, there) not in SAME_FLOOR:
        return f"{item}: {here} and {there} are both on floor {mine}; packages of one floor never import each other"
    return None


def inside_core(item: Import) -> str | None:
    """Why an import breaks the order inside core/, or None."""
    parts = item.name.split(".")
    if home_of(item.file) != "core" or parts[:2] != ["hpcdl", "core"] or len(parts) < 3 or item.file.parent == PACKAGE:
        return None
    here, there = item.file.relative_to(PACKAGE).parts[1], parts[2]
    if here == "__init__.py" or CORE_FLOORS.index(there) <= CORE_FLOORS.index(here):
        return None
    return f"{item}: core/{there} is above core/{here}; core imports down the order {' < '.join(CORE_FLOORS)}"


def modules() -> dict[str, Path]:
    return {
        ".".join(("hpcdl", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in files()
    }


def imports_of(file: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a file imports when it is imported itself."""
    found = set()
    for node in tree(file).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found & set(known)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other (Tarjan's strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def report(errors: list[str]) -> str:
    return "\n" + "\n".join(errors)


def test_imports_go_down_the_floors_only() -> None:
    errors = [error for file in files() for item in imports(file) if (error := wrong(item)) is not None]
    assert not errors, report(errors)


def test_core_imports_down_its_own_order() -> None:
    errors = [error for file in files() for item in imports(file) if (error := inside_core(item)) is not None]
    assert not errors, report(errors)
    up = Import(PACKAGE / "core" / "model" / "x.py", 1, "hpcdl.core.rules.stalls", False)
    assert "core/rules is above core/model" in str(inside_core(up))


def test_no_files_import_each_other() -> None:
    known = modules()
    # A package's own __init__ gathers what its files have; they do not import it.
    found = circles({name: imports_of(file, known) - {name} for name, file in known.items()})
    assert not found, report([" <-> ".join(group) for group in found])
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


# Public names: `elastic.World`, a callback `Suspendable` for each framework, and `hpcdl.Job`.
TWICE = {"World", "Suspendable", "Job"}
SAYS_NOTHING = {"Asked", "Given", "Told", "Found", "Seen", "Wanted", "Stay"}


def test_class_names_are_unique_and_say_what_they_are() -> None:
    where: dict[str, list[str]] = {}
    for file in files():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert len(where) > 300
    errors = [f"{name}: {', '.join(at)}" for name, at in where.items() if len(at) > 1 and name not in TWICE]
    errors += [f"{name} in {where[name][0]} says nothing" for name in where if name.lstrip("_") in SAYS_NOTHING]
    assert not errors, report(errors)


@pytest.mark.parametrize(
    ("file", "name", "why"),
    [
        ("core/x.py", "hpcdl.ledger.lease", "core is on floor 0, ledger above it on floor 2; imports go down only"),
        ("marble/x.py", "hpcdl.milp", "both on floor 2; packages of one floor never import each other"),
        ("trainer/x.py", "hpcdl.core.model.world", "imports nothing of hpcdl but itself"),
        ("ledger/x.py", "hpcdl.trainer.checkpoints", "only seen from floor 3 on"),
        ("agent/x.py", ".supervisor", "write it from hpcdl on"),
        ("daemon/x.py", "hpcdl.core.model.world", None),
        ("agent/x.py", "hpcdl.trainer.checkpoints", None),
        ("cli/__init__.py", "hpcdl.demo", None),
        ("client.py", "hpcdl.wire.access", None),
    ],
)
def test_the_rule_itself(file: str, name: str, why: str | None) -> None:
    error = wrong(Import(PACKAGE / file, 1, name, False))
    assert (error is None) if why is None else (error is not None and why in error), error


def test_every_package_is_on_a_floor_and_found_by_an_ordinary_install() -> None:
    for file in files():
        if home_of(file) not in ("__init__", BESIDE):
            assert floor_of(home_of(file)) >= 0
    bare = {str(file.parent.relative_to(ROOT)) for file in files() if not (file.parent / "__init__.py").exists()}
    assert not bare, f"without an __init__.py, which setup.cfg's find: needs: {sorted(bare)}"


def test_packages_that_need_the_standard_library_only_import_nothing_else() -> None:
    errors = [
        f"{item}: hpcdl/{home_of(file)} is imported where nothing is installed; import it in a function"
        for file in files()
        if home_of(file) in STDLIB_ONLY
        for item in imports(file)
        if item.name.split(".")[0] not in sys.stdlib_module_names | {"hpcdl"} | STDLIB_ONLY[home_of(file)]
        and (not item.lazy or home_of(file) == "core")
    ]
    assert not errors, report(errors)


@pytest.mark.parametrize("module", BARE)
def test_where_nothing_is_installed_these_are_imported(module: str) -> None:
    argv = [sys.executable, "-S", "-c", f"import {module}"]  # -S: without the environment's packages
    done = subprocess.run(argv, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr


# Methods newer than Python 3.8; neither ruff nor vermin knows the type of what they are called on.
NEWER = {"removeprefix", "removesuffix", "is_relative_to", "with_stem", "readlink", "bit_count", "hardlink_to"}


def test_the_trainer_library_calls_no_method_newer_than_python_3_8() -> None:
    of_os = {"os.readlink"}
    errors = [
        f"{file.relative_to(ROOT)}:{node.lineno} calls .{node.attr}(), which Python 3.8 has not"
        for file in sorted((PACKAGE / BESIDE).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(), feature_version=(3, 8)))
        if isinstance(node, ast.Attribute) and node.attr in NEWER and ast.unparse(node) not in of_os
    ]
    assert not errors, report(errors)


def test_the_pure_packages_touch_nothing() -> None:
    impure = {name: what for what, names in IMPURE.items() for name in names}
    errors = []
    for file in files():
        if home_of(file) not in PURE and str(file.relative_to(PACKAGE)) not in PURE_FILES:
            continue
        for item in imports(file):
            if (what := impure.get(item.name.split(".")[0])) is not None:
                errors.append(f"{item}: that is {what}, and hpcdl/{home_of(file)} is pure: values in, values out")
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                where = f"{file.relative_to(ROOT)}:{node.lineno}"
                errors.append(
                    f"{where} calls {node.func.id}(), and hpcdl/{home_of(file)} is pure: values in, values out"
                )
    assert not errors, report(errors)


def reads_the_time(file: Path) -> list[int]:
    """Lines that read the time of day; monotonic clocks, which measure, are not meant."""
    lines = []
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Attribute) and (
            ast.unparse(node) in ("time.time", "time.time_ns")
            or (
                node.attr in ("now", "utcnow", "today")
                and ast.unparse(node.value).split(".")[-1] in ("datetime", "date")
            )
        ):
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            lines.extend(node.lineno for alias in node.names if alias.name in ("time", "time_ns"))
    return lines


def test_the_time_of_day_is_read_in_one_file() -> None:
    readers = {str(file.relative_to(ROOT)): lines for file in files() if (lines := reads_the_time(file))}
    assert len(readers) <= 1, f"time is an argument; one file reads the clock, not {readers} (file: lines)"


def tracked() -> list[Path]:
    """The files of the project: git's where this is a checkout, else all but what tools leave."""
    if shutil.which("git") and (ROOT / ".git").exists():
        done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, timeout=60)
        if done.returncode == 0:
            return [path for name in done.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]
    left = {".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "__pycache__", "build"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not left & set(path.relative_to(ROOT).parts)]


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    machine = [f"/{name}/" for name in ("work", "farm", "root")] + ["../" + "shared"]
    machine += [f"{path}/" for path in (Path(pwd.getpwuid(os.getuid()).pw_dir), ROOT) if len(path.parts) > 2]
    assert len(tracked()) > 10
    errors = [
        f"{path.relative_to(ROOT)}:{number}: {found}"
        for path in tracked()
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1)
        for found in machine
        if found in line
    ]
    assert not errors, report(errors)
