"""`hpcdl web`, and a page as a file, in a real Chromium: what people do with it, and that it never says an error.

The browser comes through a TCP port that leads to the Unix socket, as by `ssh -L`. One browser and one server for the
module; each test has a window of its own.
"""

import asyncio
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcdl.core.model import events as ev
from hpcdl.core.model.incarnation import Cause
from tests.cli.conftest import Run
from tests.cli.fake import FakeDaemon
from tests.cli.test_page import tell as tell_page
from tests.cli.web.site import SOON_S, Site, host_of, site, tell, two_jobs
from tests.report.story import placed, rows
from tests.report.test_live import CURVE, answer, gpu, node, row
from tests.support import waiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SOON_MS = 1000 * SOON_S


@functools.cache
def chromium() -> str | None:
    """The browser that starts here: Ubuntu's `chromium-browser` only says that it is a snap."""
    for program in filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        if subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0:
            return program
    return None


def missing() -> str:
    """What keeps these tests from running, in one line with the next step; "" where nothing does."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install playwright"
    return "" if chromium() else "no chromium that starts: .ci/chromium installs one, or says why it cannot"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Browser"]:
    if said := missing():
        if os.environ.get("HPCDL_REQUIRE_CHROMIUM") == "1":
            pytest.fail(f"no browser to test with: {said}", pytrace=False)
        pytest.skip(said)
    from playwright.sync_api import sync_playwright

    home = tmp_path_factory.mktemp("chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            env={**os.environ, "HOME": str(home)},
            timeout=SOON_MS,
        )
        yield found
        found.close()


class Forward:
    """A port of 127.0.0.1 that leads to a Unix socket, as `ssh -L PORT:SOCKET` makes it."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self.port = 0
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._listens.wait(SOON_S)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        self._listens.set()
        await self._end.wait()
        server.close()  # what is still open is cancelled with the loop

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            their_reader, their_writer = await asyncio.open_unix_connection(self._target)
            await asyncio.gather(self._carry(reader, their_writer), self._carry(their_reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    def close(self) -> None:
        """The end of all connections."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(SOON_S)
        assert not self._thread.is_alive()


@dataclass
class Window:
    """A window that has opened a link, and what its pages said."""

    context: "BrowserContext"
    page: "Page"
    base: str
    said: list[str] = field(default_factory=list)

    def go(self, path: str) -> "Page":
        self.page.goto(self.base + path)
        return self.page


@dataclass
class Scene:
    fake: FakeDaemon
    home: Path
    site: Site
    port: int


@pytest.fixture(scope="module")
def scene(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    home = tmp_path_factory.mktemp("web") / "home"
    home.mkdir(mode=0o700)
    fake = FakeDaemon(home).start()
    tell(fake, **two_jobs())
    with site(home) as found:
        link = found.next_link()
        assert found.socket is not None
        forward = Forward(found.socket)
        try:
            found.read = 0  # the first link is for the first window
            assert link
            yield Scene(fake, home, found, forward.port)
        finally:
            forward.close()
            fake.close()


def listening(page: "Page") -> list[str]:
    """All that a page says of errors, from now on."""
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return said


def until(page: "Page", condition: str) -> None:
    """Waits until an expression of JavaScript is true. Playwright's own way is `eval`, which our policy forbids."""
    waiting.until(lambda: page.evaluate(condition), condition, story=lambda: page.inner_text("body")[:3000])


@pytest.fixture
def window(browser: "Browser", scene: Scene) -> Iterator[Window]:
    """A window whose link was opened; at its end nothing was wrong in it."""
    tell(scene.fake, **two_jobs())
    link = scene.site.next_link()
    host = host_of(link).partition(":")[0]
    base = f"http://{host}:{scene.port}"
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(SOON_MS)
    page = context.new_page()
    said = listening(page)
    page.goto(base + "/open/" + link.partition("/open/")[2])
    page.wait_for_url(base + "/")
    page.wait_for_selector("#running")
    yield Window(context, page, base, said)
    context.close()
    assert said == []


def test_a_link_opens_one_browser(browser: "Browser", scene: Scene, window: Window) -> None:
    (cookie,) = window.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert "open" not in window.page.url
    assert window.page.evaluate("document.cookie") == ""
    used = scene.site.printed.decode().split()
    secret = next(word for word in used if "/open/" in word).partition("/open/")[2]
    other = browser.new_context()
    try:
        answered = other.new_page().goto(f"{window.base}/open/{secret}")
        assert answered is not None
        assert answered.status == 403
        assert other.cookies() == []
        refused = other.new_page().goto(f"{window.base}/")
        assert refused is not None
        assert refused.status == 403
    finally:
        other.close()


def test_filter_and_sort(scene: Scene, window: Window) -> None:
    page = window.page
    rows = page.locator("#waiting tbody tr:visible")
    assert rows.count() == 7
    page.fill("#filter", "vgg-5")
    until(page, "document.querySelectorAll('#waiting tbody tr:not([hidden])').length === 1")
    assert "vgg-5" in rows.inner_text()
    assert page.locator("#running tbody tr:visible").count() == 0
    failed = {"id": 9, "name": "vit", "finished_at": 940.0, "cause": "user error", "exit_code": 1, "detail": "x"}
    tell(scene.fake, **two_jobs(), failed=[failed], curves={"1": [CURVE]})
    page.fill("#filter", "failed")
    until(page, "document.querySelectorAll('#failed tbody tr:not([hidden])').length === 1")
    assert page.locator("#running tbody tr:visible").count() == 0
    until(page, "document.querySelector('#curves .of-job').hidden")
    page.fill("#filter", "resnet running")
    until(page, "!document.querySelector('#curves .of-job').hidden")
    assert page.locator("#running tbody tr:visible").count() == 1
    page.fill("#filter", "")
    until(page, "document.querySelectorAll('#waiting tbody tr:not([hidden])').length === 7")
    page.get_by_role("button", name="Job").nth(0).click()
    page.get_by_role("button", name="Job").nth(0).click()
    until(page, "document.querySelector('#waiting tbody tr').textContent.includes('vgg-8')")
    # A filter is kept when the page is looked at again.
    page.fill("#filter", "resnet")
    page.reload()
    until(page, "document.querySelectorAll('#waiting tbody tr:not([hidden])').length === 0")


def test_an_array_is_one_row_that_unfolds(scene: Scene, window: Window) -> None:
    array: dict[str, Any] = {"array": 20, "submitted_at": 990.0}
    members = [
        row(number, name=f"sweep[lr={number}]", array_index=number, sweep={"lr": str(number)}, **array,
            **({"state": "FAILED", "cause": "user error"} if number == 33 else {"state": "DONE", "cause": "done"}))
        for number in range(20, 61)
    ]  # fmt: skip
    alone = [row(number, name=f"vgg-{number}", state="DONE") for number in range(1, 9)]
    tell(scene.fake, running=[], waiting=[*alone, *members])
    page = window.go("/jobs")
    shown = page.locator("#jobs tbody tr:visible")
    folded = "document.querySelectorAll('#jobs tbody tr:not([hidden])').length === 9"
    until(page, folded)
    assert page.locator("#jobs h2").inner_text() == "Jobs 49"
    first = shown.first.inner_text()
    assert "20-60" in first
    assert "sweep[lr=20..60]" in first
    assert "40 DONE, 1 FAILED" in first
    # The filter finds a member, and says of how many jobs.
    page.fill("#filter", "failed")
    until(page, "document.querySelectorAll('#jobs tbody tr:not([hidden])').length === 2")
    assert "sweep[lr=33]" in shown.nth(1).inner_text()
    assert page.locator(".tools [role=status]").inner_text() == "1 of 49 rows"
    page.fill("#filter", "sweep")
    until(page, "document.querySelectorAll('#jobs tbody tr:not([hidden])').length === 1")
    page.fill("#filter", "")
    until(page, folded)
    # It stays unfolded when the page is looked at again, and its members stay below it in any order.
    unfold = shown.first.get_by_role("button")
    assert unfold.get_attribute("aria-expanded") == "false"
    unfold.click()
    until(page, "document.querySelectorAll('#jobs tbody tr:not([hidden])').length === 50")
    page.get_by_role("button", name="Name").click()
    page.reload()
    until(page, "document.querySelectorAll('#jobs tbody tr:not([hidden])').length === 50")
    names = page.locator("#jobs tbody tr td:nth-child(2)").all_inner_texts()
    assert names == [
        "sweep[lr=20..60]",
        *(f"sweep[lr={each}]" for each in range(20, 61)),
        *(f"vgg-{n}" for n in range(1, 9)),
    ]
    page.get_by_role("button", name="20-60").click()
    until(page, folded)
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert shown.count() == 9, "what is hidden is so on a telephone, too"


def test_a_job_changes_while_it_is_looked_at(scene: Scene, window: Window) -> None:
    page = window.page
    until(page, "document.querySelector('#running').textContent.includes('RUNNING')")  # it may be of the test before
    tell(scene.fake, **two_jobs("SUSPENDING"))
    until(page, "document.querySelector('#running').textContent.includes('SUSPENDING')")
    assert "RUNNING" not in page.locator("#running").inner_text()
    tell(scene.fake, running=[], names={}, nodes=[node("n1", gpu(0))])
    until(page, "document.querySelector('#running').textContent.includes('No job holds a GPU.')")
    assert "SUSPENDING" not in page.locator("#running").inner_text()


def test_a_log_is_followed(scene: Scene, window: Window) -> None:
    folder = scene.home / "logs" / "1"
    folder.mkdir(parents=True)
    log = folder / "1.n1.log"
    log.write_bytes(b"<img src=x onerror=alert(1)> first\n")
    page = window.page
    page.get_by_role("link", name="1", exact=True).first.click()
    page.wait_for_url("**/job/1")
    until(page, "document.querySelector('#log').textContent.includes('onerror=alert(1)> first')")
    assert page.locator("#log img").count() == 0
    assert page.locator("#output select").count() == 0
    with log.open("ab") as file:
        file.write(b"\x1b[31msecond\x1b[0m\n")
    until(page, "document.querySelector('#log').textContent.endsWith('first\\nsecond\\n')")
    assert "job 1 holds n1:0" in page.locator("#facts").inner_text()
    # Another attempt follows, and the first one can be chosen, though not while somebody types; what is chosen is kept.
    lines = page.get_by_label("Only lines with")
    lines.focus()
    (folder / "2.n1.log").write_bytes(b"[rank0]: third\n[rank1]: fourth\n")
    until(page, "document.querySelector('#log').textContent.includes('second\\n\\n==> attempt 2 on n1 <==\\n[rank0]')")
    lines.fill("RANK1")
    until(page, "document.querySelector('#log').textContent === '[rank1]: fourth'")
    lines.fill("")
    for _ in range(2):  # what the page asks first is drawn, or not, before it asks again
        with page.expect_request("**/job/1"):
            pass
    assert page.locator("#output select").count() == 0
    lines.blur()
    page.get_by_label("Attempt and node").select_option("attempt 1")
    until(page, "document.querySelector('#log').textContent.endsWith('first\\nsecond\\n')")
    assert "third" not in page.locator("#log").inner_text()
    page.reload()
    until(page, "document.querySelector('#log').textContent.endsWith('second\\n')")
    page.get_by_label("Attempt and node").select_option("the newest attempt")
    until(page, "document.querySelector('#log').textContent.endsWith('fourth\\n')")


@pytest.mark.parametrize("status", [400, 414, 431])
def test_a_log_whose_place_is_refused_begins_anew(scene: Scene, window: Window, status: int) -> None:
    """As where the request's line has become longer than something between allows."""
    folder = scene.home / "logs" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    log, page = folder / "1.n1.log", window.page
    log.write_bytes(b"first\n")
    refused: list[str] = []

    def refuse(route: Any) -> None:
        url = route.request.url
        if "after=&" in url or url not in (refused or [url]):
            route.continue_()
        else:
            refused.append(url)
            route.fulfill(status=status, body="too long")

    page.route("**/job/1/log?*", refuse)
    page.get_by_role("link", name="1", exact=True).first.click()
    page.wait_for_url("**/job/1")
    until(page, "document.querySelector('#log').textContent === 'first\\n'")
    with log.open("ab") as file:
        file.write(b"second\n")
    until(page, "document.querySelector('#log').textContent === 'first\\nsecond\\n'")
    assert refused
    assert all(str(status) in said for said in window.said), window.said
    window.said.clear()


def test_the_daemon_goes_and_comes(scene: Scene, window: Window) -> None:
    page = window.page
    assert page.locator("html.stale").count() == 0, "however old the answer says that it is"
    scene.fake.kill()
    try:
        page.wait_for_selector("html.stale")
        until(page, "document.body.textContent.includes('This is how it was at')")
    finally:
        scene.fake.start()
    page.wait_for_selector("html:not(.stale)")


def zoomed(page: "Page") -> float:
    return float(page.evaluate("parseFloat(document.querySelector('.zoomable .plot svg').getAttribute('width'))"))


def test_the_timeline_zooms_by_brush(window: Window) -> None:
    page = window.page
    plot = page.locator(".zoomable .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], y, steps=5)
    page.mouse.up()
    until(page, "parseFloat(document.querySelector('.zoomable .plot svg').getAttribute('width')) > 350")
    assert zoomed(page) == pytest.approx(400, rel=0.1)
    page.get_by_role("button", name="All").click()
    until(page, "document.querySelector('.zoomable .plot svg').getAttribute('width') === '100%'")


def swept(width: float) -> dict[str, Any]:
    """Two jobs side by side, of which the second has the last `width` of the time."""
    names = {1: "resnet-50[lr=0.1,bs=32]", 2: "resnet-50[lr=0.01,bs=64]", 3: "pretraining-without-any-sweep"}
    begin, end, now = 1000.0, 4600.0 - 3600.0 * width, 4600.0
    done = (end, ev.IncarnationEnded(1, 1, Cause.DONE))
    told = [(begin, ev.StartRequested(1, 1, ("n1",), placed([0]))), done]
    told += [(end, ev.StartRequested(job, 1, ("n1",), placed([gpu]))) for job, gpu in ((2, 0), (3, 1))]
    return {
        "at": now, "nodes": [node("n1", gpu(0, 2), gpu(1, 3))], "events": rows(told), "last": len(told),
        "names": {str(number): name for number, name in names.items()},
    }  # fmt: skip


@pytest.mark.parametrize(
    "width, viewport, second, third",
    [
        (0.5, 1280, "resnet-50[lr=0.01,bs=64] · 1 GPU", "pretraining-without-any-sweep · 1 GPU"),
        (0.12, 1280, "2 [0.01,64]", "3 pretraining-…"),
        (0.5, 400, "2 [0.01,64]", "3 pretraining-…"),
        (0.12, 400, "2", "3"),
        (0.02, 400, "", ""),
    ],
)
def test_a_bar_shows_of_its_name_what_has_room(
    browser: "Browser",
    hpcdl: Run,
    fake: FakeDaemon,
    tmp_path: Path,
    width: float,
    viewport: int,
    second: str,
    third: str,
) -> None:
    told = answer(**swept(width))
    tell_page(fake, "login1", **{key: value for key, value in told.items() if key != "after"})
    target = tmp_path / "now.html"
    assert hpcdl("page", "-o", target).code == 0
    page = browser.new_page(viewport={"width": viewport, "height": 900})
    try:
        page.set_default_timeout(SOON_MS)
        page.goto(target.as_uri())
        bars = page.locator("svg.bar[data-job]")
        shown = {bar.get_attribute("data-job"): bar.evaluate(BAR_TEXT) for bar in bars.all()}
        assert {job: text for job, (text, _) in shown.items() if job != "1"} == {"2": second, "3": third}
        assert all(fits for _, fits in shown.values()), "none is cut"
    finally:
        page.close()


BAR_TEXT = """bar => {
  const text = bar.querySelector("text");
  return [text ? text.textContent : "", !text || text.getComputedTextLength() + 6 <= bar.width.baseVal.value];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_a_telephone(scene: Scene, window: Window, scheme: Any) -> None:
    folder = scene.home / "logs" / "2"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("1.n1.log", "1.a-node-of-a-long-name.log", "2.n1.log", "2.n1.streams"):
        (folder / name).touch()
    window.page.set_viewport_size({"width": 400, "height": 800})
    window.page.emulate_media(color_scheme=scheme)
    for path in ("/", "/jobs", "/job/1", "/job/2", "/node/n1", "/timeline"):
        page = window.go(path)
        page.wait_for_selector("h1")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path


def test_a_column_without_a_title_is_not_sorted_by(browser: "Browser", hpcdl: Run, tmp_path: Path) -> None:
    target = tmp_path / "plan.html"
    assert hpcdl("burst", "plan", "vgg16", "--gpus", "8", "--limit", "2", "-o", target).code == 0
    page = browser.new_page()
    try:
        said = listening(page)
        page.set_default_timeout(SOON_MS)
        page.goto(target.as_uri())
        titles = page.locator("th button").all_inner_texts()
        assert "GPUs" in titles
        assert all(titles)
        page.locator("th button").nth(titles.index("GPUs")).click()
        first = page.locator("tbody tr td").first
        until(page, "document.querySelector('[aria-sort=ascending]') !== null")
        assert first.inner_text().startswith("fc"), "the layers on one GPU"
        assert said == []
    finally:
        page.close()


def large() -> dict[str, Any]:
    """An overview of 1,000 GPUs and 2,000 jobs."""
    nodes = [
        node(f"gpu{number:04d}", *(gpu(index, number * 8 + index + 1) for index in range(8))) for number in range(125)
    ]
    sweep = {"lr": "0.001", "bs": "64"}
    running = [
        row(number, name=f"imagenet-resnet50-lr=0.001-bs=64-seed={number}", state="RUNNING", gpus=1, on=["gpu0001"],
            step=number, total=9000, saved_step=number, rate=3.3, eta_s=9000.0, sweep=sweep)
        for number in range(1, 61)
    ]  # fmt: skip
    waiting = [
        row(number, name=f"imagenet-resnet50-seed={number}", starts_in_s=900.0, eta_s=9900.0)
        for number in range(1001, 1061)
    ]
    names = {str(number): f"imagenet-resnet50-seed={number}" for number in range(1, 1001)}
    return {
        "nodes": nodes,
        "running": running,
        "running_more": 940,
        "waiting": waiting,
        "waiting_more": 940,
        "names": names,
    }


def test_a_large_page_is_small_and_says_no_error(
    browser: "Browser", hpcdl: Run, fake: FakeDaemon, tmp_path: Path
) -> None:
    """Under 1 MB with 1,000 GPUs and 2,000 jobs; benchmarks/page.py says how soon it is painted."""
    told = answer(**large())
    tell_page(fake, "login1", **{key: value for key, value in told.items() if key != "after"})
    target = tmp_path / "now.html"
    assert hpcdl("page", "-o", target).code == 0
    assert target.stat().st_size < 1_000_000
    page = browser.new_page()
    try:
        said = listening(page)
        page.set_default_timeout(SOON_MS)
        page.goto(target.as_uri())
        page.wait_for_selector("#filter")
        page.fill("#filter", "seed=7")
        until(page, "document.querySelector('[role=status]').textContent.includes(' of 120 rows')")
        assert said == []
        assert re.search(r"^\d+ of 120 rows$", page.locator(".tools [role=status]").inner_text())
        assert json.dumps(page.evaluate("performance.getEntriesByType('resource').length")) == "0", "nothing is loaded"
    finally:
        page.close()
