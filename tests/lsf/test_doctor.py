"""`hpcdl doctor` and `holes` beside an emulated LSF, and one that can do less."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdl.batch.site import read_site
from tests.lsf.cluster import LsfCluster
from tests.support.extent import one_of


def hpcdl(lsf: LsfCluster, home: Path, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "hpcdl", "--home", str(home), *words, "--json"],
        env=lsf.environment(HPCDL_BATCH="lsf"),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("style", one_of("lsf", "openlava"))
def test_doctor_says_what_is_missing_and_holes_what_idles(
    make_lsf: Callable[..., LsfCluster], tmp_path: Path, style: str
) -> None:
    lsf, home = make_lsf(style=style), tmp_path / "hpcdl"
    batch = hpcdl(lsf, home, "doctor")["batch"]
    missing = "\n".join(batch["missing"])
    assert batch["kind"] == "lsf"
    assert batch["commands"]["bslots"] is (style == "lsf")
    assert batch["json"] is (style == "lsf")
    assert ("no bslots" in missing) is (style == "openlava")
    assert ("-json are refused" in missing) is (style == "openlava")
    (hole,) = hpcdl(lsf, home, "holes")["holes"]
    assert hole["nodes"] == ["h1", "h2", "h3", "h4"]
    assert hole["gpus"] == 4
    site = read_site(Path(hpcdl(lsf, home, "doctor", "--site")["site"]["file"]))
    assert site.kind == "lsf"
    assert site.site.queues == ()
    told = batch["not_preempted"]
    assert {name: not why for name, why in told.items()} == {
        "urgent": False, "normal": False, "low": True, "killable": True, "background": False,
    }  # fmt: skip
