"""`hpcdl submit --output` and `--error`: what is sent, and what is refused before anything runs."""

import os
from pathlib import Path
from typing import Any

import pytest

import hpcdl.python.options as of_python
from hpcdl.core.model.frozen import from_json, to_json
from hpcdl.core.model.job import JobSpec
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon, specs_of

FILES = ("--output", "logs/%x-%j.out", "--error", "~/%j.err")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    (folder / "logs").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def sent(fake: FakeDaemon) -> list[dict[str, Any]]:
    return list(specs_of(next(body for method, _, body in reversed(fake.requests) if method == "POST")))


def files(fake: FakeDaemon) -> list[tuple[str, str]]:
    return [(spec["output"], spec["error"]) for spec in sent(fake)]


def test_the_files_of_a_job(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    assert hpcdl("submit", *FILES, "--", "true").code == 0
    assert files(fake) == [("logs/%x-%j.out", f"{here}/%j.err")]
    assert hpcdl("submit", "--like", 1, "--output", "x").code == 0
    assert files(fake) == [("x", f"{here}/%j.err")]
    assert hpcdl("submit", "--", "true").code == 0
    assert files(fake) == [("", "")]
    Path("jobs.yaml").write_text(
        "defaults: {output: logs/%j}\njobs:\n- {command: 'true', error: e}\n- command: 'true'\n"
    )
    assert hpcdl("submit", "--file", "jobs.yaml").code == 0
    assert files(fake) == [("logs/%j", "e"), ("logs/%j", "")]
    assert hpcdl("submit", "--json", "--output", "x", "--", "true").value["jobs"][0]["id"]


def test_members_of_an_array_have_their_own(fake: FakeDaemon, hpcdl: Run) -> None:
    argv = ("submit", "--array", "1-2", "--sweep", "lr=0.1", "--output", "{index}-{lr}-%a", "--error", "{{lr}}")
    assert hpcdl(*argv, "--", "x").code == 0
    assert files(fake) == [("1-0.1-%a", "{lr}"), ("2-0.1-%a", "{lr}")]
    assert "names {nope}" in hpcdl(*argv[:-1], "{nope}", "--", "x").err


def test_options_of_python(fake: FakeDaemon, here: Path) -> None:
    spec = of_python.job_request(fake.home, ["true"], {"output": here / "out", "error": "%j"}).spec
    assert (spec.output, spec.error) == (f"{here}/out", "%j")


def test_they_win_over_the_lines_of_a_script(fake: FakeDaemon, hpcdl: Run) -> None:
    Path("x.sh").write_text("#!/bin/sh\n#SBATCH --gpus=1 --output=mine --error=errors\ntrue\n")
    assert hpcdl("submit", "--output", "logs/a", "x.sh").code == 0
    [spec] = sent(fake)
    assert (spec["output"], spec["error"]) == ("logs/a", "")
    assert (spec["batch"]["output"], spec["batch"]["error"]) == ("", "errors")


def test_what_cannot_have_the_output_is_refused(fake: FakeDaemon, hpcdl: Run, here: Path) -> None:
    Path("file").touch()
    before = len(fake.requests)
    none = f"there is no such folder: mkdir -p {here}/none"
    for path, why in {
        "none/%j.out": f"none/%j.out cannot have the output, {here}/none: {none}",
        f"{here}/none/x": f"{here}/none/x cannot have the output, {here}/none: {none}",
        "file/x": f"file/x cannot have the output, {here}/file: it is no folder",
        "logs": f"{here}/logs is a folder: name a file in it for the output, logs/%j.out",
    }.items():
        for option in ("--output", "--error"):
            done = hpcdl("submit", option, path, "--", "true")
            assert (done.code, done.out, done.err) == (1, "", f"hpcdl: {why}\n")
    assert all(method != "POST" for method, _, _ in fake.requests[before:])
    for path in ("%j/x", "/nothing-of-it-is-here/x", os.devnull, "file"):
        assert hpcdl("submit", "--output", path, "--", "true").code == 0, path


def test_a_spec_without_them_opens(fake: FakeDaemon) -> None:
    plain = to_json(JobSpec(("x",), "n"))
    del plain["output"], plain["error"]
    assert from_json(JobSpec, plain) == JobSpec(("x",), "n")
    for name in ("output", "error"):
        with pytest.raises(ValueError, match="NUL"):
            JobSpec(("x",), "n", **{name: "a\0b"})  # type: ignore[arg-type]
