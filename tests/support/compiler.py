"""Libraries of ours in the place of a GPU's, compiled by this machine's C compiler or, without one, by ziglang's."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def c_compiler() -> list[str] | None:
    """The words before its options."""
    for name in ("cc", "gcc"):
        if path := shutil.which(name):
            return [path]
    if importlib.util.find_spec("ziglang") is not None:  # .ci/tools installs it
        return [sys.executable, "-m", "ziglang", "cc", "-O1", "-g0", "-fno-sanitize=all"]
    return None


def compile_library(source: Path, library: Path, *flags: str) -> None:
    """Skips the test where nothing compiles."""
    compiler = c_compiler()
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev, or pip install ziglang")
    environment = os.environ | {"ZIG_GLOBAL_CACHE_DIR": str(Path(__file__).resolve().parents[2] / "build" / "zig")}
    argv = [*compiler, "-shared", "-fPIC", "-Wall", "-Werror", *flags, "-o", str(library), str(source)]
    subprocess.run(argv, env=environment, check=True, timeout=240)
