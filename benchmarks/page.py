"""What `hpcdl page` and `hpcdl metrics` cost the daemon and whoever runs them, on a large cluster.

    python benchmarks/page.py                      # one JSON value: 1,000 nodes x 8 GPUs, 2,000 jobs
    python benchmarks/page.py --nodes 4 --jobs 20
    python benchmarks/page.py -o large.html        # and the page
    python benchmarks/page.py --nodes 125 --paint  # 1,000 GPUs; and how soon Chromium has painted it: under 1 s

Milliseconds are CPU time of the process: of the daemon for an answer with its JSON, of the command for reading it,
drawing, and the text. `first` is the first round, `next` the median of those after it.
"""

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, TypeVar, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.controller import PROFILE, Bench
from benchmarks.measuring import setting
from hpcdl.cli.params import local_time
from hpcdl.core.model import events as ev
from hpcdl.core.model.plan import Profiles
from hpcdl.daemon.api.context import ApiContext, DaemonStatus, Handler
from hpcdl.daemon.api.http import json_answer
from hpcdl.daemon.api.metrics import metrics
from hpcdl.daemon.api.overview import overview
from hpcdl.daemon.meter import Durations, Meter
from hpcdl.report.live import PageState, Recent, now_page
from hpcdl.wire import messages as msg

T = TypeVar("T")


class Scene:
    """The routes over a controller in memory whose GPUs all report what they do."""

    def __init__(self, nodes: int, gpus: int, jobs: int) -> None:
        self.bench = Bench(nodes, gpus, "adaptive")
        self.meter = Meter(0.0)
        self.bench.controller.on_recorded = self.meter.take
        self.bench.submit_at_once(jobs)
        for number in list(self.bench.controller.world.live):
            job = self.bench.controller.world.jobs[number]
            for kind in (ev.Started, ev.TrainerReady):
                self.bench.controller.step([self.bench.report(job, kind)], self.bench.now)
            progress = self.bench.report(job, ev.Progressed, step=100 + number % 800, total=1000)
            self.bench.controller.step([progress], self.bench.now + 60.0)
        self.bench.now += 3600.0
        names = list(self.bench.controller.world.nodes)
        beats = {
            name: msg.HeartbeatMessage(
                tuple(msg.GpuLine(gpu, (37 * number + 13 * gpu) % 101, 1024 * gpu, 200.0) for gpu in range(gpus)), ()
            )
            for number, name in enumerate(names)
        }
        hub = cast(Any, SimpleNamespace(nodes=lambda: tuple(names), heartbeats=lambda: beats))
        about = DaemonStatus(1, "n1", 0.0, "0", "/home/jo/.hpcdl", ("adaptive",))
        profiles = Profiles({"p": PROFILE})
        self.api = ApiContext(cast(Any, self), hub, cast(Any, None), profiles, about, meter=self.meter)
        self.planning = Durations()

    @property
    def world(self) -> Any:
        return self.bench.controller.world

    @property
    def reasons(self) -> Any:
        return self.bench.controller.reasons

    def now(self) -> float:
        return self.bench.now

    def call(self, function: Callable[[Any], T]) -> "Future[T]":
        found: Future[T] = Future()
        found.set_result(function(self.bench.controller))
        return found

    def ask(self, handler: Handler, **query: object) -> bytes:
        request: Any = SimpleNamespace(query_params={name: str(value) for name, value in query.items()})

        async def answered() -> dict[str, Any]:
            return await handler(self.api, request)

        content = json_answer(200, asyncio.run(answered())).body
        return bytes(content)


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Its value, and milliseconds of CPU time."""
    begin = time.process_time()
    value = function()
    return value, 1000 * (time.process_time() - begin)


def measure(nodes: int, gpus: int, jobs: int, rounds: int, target: Path | None, *, paint: bool) -> dict[str, Any]:
    """The figures."""
    scene, recent = Scene(nodes, gpus, jobs), Recent(3 * 3600.0)
    asked, drawn, text, size, first_size = [], [], "", 0, 0
    for number in range(rounds + 1):
        content, took = timed(lambda: scene.ask(overview, after=recent.after))
        asked.append(took)
        size = len(content)
        first_size = size if number == 0 else first_size

        def draw(content: bytes = content) -> str:
            answer = json.loads(content)
            recent.take(answer)
            return now_page(answer, recent.history(answer), recent.names, PageState(10.0, local_time))

        text, took = timed(draw)
        drawn.append(took)
        scene.bench.now += 10.0
    if target is not None:
        target.write_text(text)
    told = [timed(lambda: scene.ask(metrics)) for _ in range(rounds)]
    return {
        "daemon_ms": {"first": round(asked[0], 1), "next": round(median(asked[1:]), 1)},
        "answer_kb": {"first": first_size // 1000, "next": size // 1000},
        "command_ms": {"first": round(drawn[0], 1), "next": round(median(drawn[1:]), 1)},
        "page_kb": len(text.encode()) // 1000,
        "metrics_ms": round(median(took for _, took in told), 1),
        "metrics_kb": len(told[0][0]) // 1000,
        **({"chromium": painted(text, rounds)} if paint else {}),
    }


def browser_path() -> str:
    """Raises SystemExit where there is no Chromium, or nothing to steer it."""
    if find_spec("playwright") is None:
        raise SystemExit("there is no playwright, which steers Chromium: make install-test installs it")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("there is no chromium: .ci/chromium installs it")
    return chromium


def painted(text: str, rounds: int) -> dict[str, float]:
    """Milliseconds of the clock from the navigation until Chromium first painted the page, and until its script was
    done."""
    from playwright.sync_api import sync_playwright

    chromium = browser_path()
    first, done = [], []
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "page.html"
        file.write_text(text)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(rounds):
            page = browser.new_page()
            page.goto(file.as_uri())
            while not (paints := page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")):
                page.wait_for_timeout(10)
            first.append(float(paints))
            done.append(float(page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")))
            page.close()
        browser.close()
    return {
        "first_paint_ms": round(median(first)),
        "longest_ms": round(max(first)),
        "script_done_ms": round(median(done)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", dest="target", type=Path)
    parser.add_argument("--paint", action="store_true")
    given = parser.parse_args(argv)
    if given.paint:
        browser_path()
    found = measure(given.nodes, given.gpus, given.jobs, given.rounds, given.target, paint=given.paint)
    of = {"nodes": given.nodes, "gpus": given.gpus, "jobs": given.jobs}
    print(json.dumps({"schema": 1, **of, **found, "setting": setting()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
