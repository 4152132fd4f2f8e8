"""`hpcdl submit --tag` and `--link`: words and links of the user's own, and where they are shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcdl.core.model.job import JobSpec
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon

LINK = "https://wandb.ai/me/p/runs/1?view=curves#loss"


def spec(fake: FakeDaemon) -> dict[str, Any]:
    sent: dict[str, Any] = fake.requests[-1][2]["jobs"][0]
    return sent


def test_tags_and_links_are_sent(fake: FakeDaemon, hpcdl: Run) -> None:
    options = ("--tag", "baseline", "--tag", "lr=0.1,größe", "--link", f"wandb={LINK}", "--link", "log=http://h:80/")
    assert hpcdl("submit", *options, "--", "x.py").code == 0
    assert spec(fake)["tags"] == ["baseline", "lr=0.1", "größe"]
    assert spec(fake)["links"] == [["wandb", LINK], ["log", "http://h:80/"]]
    assert hpcdl("submit", "--", "x.py").code == 0
    assert (spec(fake)["tags"], spec(fake)["links"]) == ([], [])


def test_a_file_has_them_as_lists_and_as_keys(fake: FakeDaemon, hpcdl: Run, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(f"jobs:\n- {{command: x.py, tag: [a, b], link: {{wandb: '{LINK}', mlflow: 'http://h/'}}}}\n")
    assert hpcdl("submit", "--file", str(file)).code == 0
    assert (spec(fake)["tags"], spec(fake)["links"]) == (["a", "b"], [["wandb", LINK], ["mlflow", "http://h/"]])


@pytest.mark.parametrize(
    ("option", "wrong", "said"),
    [
        ("--tag", "two words", "is no tag"),
        ("--tag", "", "is no tag"),
        ("--tag", "-x", "is no tag"),
        ("--tag", "a" * 64, "is no tag"),
        ("--tag", ",".join(f"t{each}" for each in range(17)), "may have 16 tags"),
        ("--link", LINK, "write NAME=URL"),
        ("--link", "wandb", "write NAME=URL"),
        ("--link", "a b=https://x/", "cannot name a link"),
        ("--link", "x=javascript:alert(1)", "needs a URL"),
        ("--link", "x=https://x/ y", "needs a URL"),
        ("--link", "x=ftp://x/", "needs a URL"),
        ("--link", "x=https://", "needs a URL"),
        ("--link", f"x=https://x/{'y' * 2000}", "needs a URL"),
        ("--link", "x=https://me:hunter2@x/", "holds a password or key"),
        ("--link", "x=https://x/?a=1&access_token=hunter2", "holds a password or key"),
        ("--link", "x=https://x/#api-key=hunter2", "holds a password or key"),
    ],
)
def test_what_is_no_tag_or_link_is_refused(fake: FakeDaemon, hpcdl: Run, option: str, wrong: str, said: str) -> None:
    before = len(fake.requests)
    result = hpcdl("submit", option, wrong, "--", "x.py")
    assert (result.code, len(fake.requests)) == (2, before)
    assert said in result.err
    assert option in result.err
    assert "hunter2" not in result.err


def test_they_are_checked_wherever_they_come_from() -> None:
    made: list[Callable[[], JobSpec]] = [
        lambda: JobSpec(("x",), "x", tags=("a", "a")),
        lambda: JobSpec(("x",), "x", links=(("a", "http://h/"), ("a", "http://g/"))),
        lambda: JobSpec(("x",), "x", links=tuple((f"l{each}", "http://h/") for each in range(17))),
    ]
    for each in made:
        with pytest.raises(ValueError, match=r"each tag once|one link of each name|may have 16 links"):
            each()


def test_ls_and_show_have_them(fake: FakeDaemon, hpcdl: Run) -> None:
    hpcdl("submit", "--", "x.py")
    fake.world.jobs[1] |= {"tags": ["baseline", "b"], "links": {"wandb": LINK}}
    said = [line.split() for line in hpcdl("show", "1").out.splitlines()]
    assert ["tags", "baseline", "b"] in said
    assert ["link", "wandb", LINK] in said
    assert hpcdl("ls", "--columns", "id,tags,links").out.splitlines()[:2] == [
        f"ID  TAGS        {'LINKS':<51}".rstrip(), f" 1  baseline b  wandb={LINK}",
    ]  # fmt: skip
