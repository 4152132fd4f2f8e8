"""What an ordinary install, and a newcomer's first command, rest on."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import hpcdl

ROOT = Path(__file__).parents[1]


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def names(text: str) -> list[str]:
    """The names of a list of requirements, as an index compares them."""
    return [re.split(r"[<>=! ]", line)[0].lower().replace("_", "-") for line in text.split("\n") if line.strip()]


def test_an_ordinary_install_has_every_configuration_file_and_job_script() -> None:
    patterns = dict(settings()["options.data_files"].items())
    installed = set()
    for target, pattern in patterns.items():
        assert target == f"share/hpcdl/{Path(pattern).parent}"
        installed |= set(ROOT.glob(pattern))
    there = {
        path
        for folder in ("conf", "jobscripts")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert not there - installed, "not installed: add their folder to data_files in setup.cfg"
    assert all(path.is_file() for path in installed), "a folder that is matched breaks the install"


def test_an_ordinary_install_has_every_file_beside_the_code() -> None:
    """Styles, scripts, skeletons and tables stand beside the Python that reads them."""
    installed = set()
    for package, patterns in settings()["options.package_data"].items():
        folder = "hpcdl/**" if package == "*" else package.replace(".", "/")
        for pattern in patterns.replace("\n", ",").split(","):
            installed |= set(ROOT.glob(f"{folder}/{pattern.strip()}"))
    there = {
        path
        for path in (ROOT / "hpcdl").rglob("*")
        if path.is_file() and path.suffix != ".py" and "__pycache__" not in path.parts
    }
    assert not there - installed, "not installed: add their kind to package_data in setup.cfg"
    assert ROOT / "hpcdl" / "report" / "page.css" in installed


def test_every_requirement_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text()
    assert "torch==2.13.0\n" in pins
    lines = [line for line in pins.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9A-Za-z.]+", line)] == []
    options, extras = settings()["options"], settings()["options.extras_require"]
    wanted = names(options["install_requires"]) + names(extras["test"]) + names(extras["torch"])
    assert set(wanted) <= set(names("\n".join(lines)))


def test_the_package_itself_imports_nothing_and_says_its_version() -> None:
    code = "import sys; before = set(sys.modules); import hpcdl; print(sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "['hpcdl']"
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", hpcdl.__version__)


def test_the_version_stands_in_one_place() -> None:
    assert settings()["metadata"]["version"] == "attr: hpcdl.__version__"
    assert hpcdl.__version__ not in (ROOT / "setup.cfg").read_text() + (ROOT / "pyproject.toml").read_text()


def test_make_says_what_it_can_do() -> None:
    done = subprocess.run(["make", "-s", "-C", str(ROOT)], capture_output=True, text=True, timeout=60, check=True)
    assert all(f"make {target} " in done.stdout for target in ("demo", "smoke", "test", "lint", "venv", "clean"))


def test_the_smoke_test_needs_nothing_of_the_extra_test() -> None:
    code = "import sys, tests.smoke; print(*{'pytest', 'hypothesis', 'torch', 'keras'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
