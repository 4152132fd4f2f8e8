"""A daemon that is only its API: real TLS, real sockets, jobs in a dict. It can die in the middle of a request."""

import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hpcdl.core.model.arrays import expand
from hpcdl.core.model.commands import Entry
from hpcdl.core.model.frozen import to_json
from hpcdl.core.model.job import JobSpec
from hpcdl.core.model.plan import Profiles
from hpcdl.core.model.world import GpuInfo, Job, Node
from hpcdl.core.model.world import World as SubmittedWorld
from hpcdl.daemon.api.rows import RowBuilder
from hpcdl.daemon.api.submit import submit_of
from hpcdl.wire.access import AccessFile, write_access
from hpcdl.wire.private_files import make_private_folder, write_new
from hpcdl.wire.tls import make_certificate, server_context

TOKEN = "fake-token-" * 4
OF_SPEC = ("gpus_min", "gpus_max", "nodes", "nodes_max")
"""What of a row other keys follow from."""


@dataclass
class World:
    """What outlives a fake daemon."""

    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    request_ids: dict[str, list[int]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    """What a retry answers as jobs that stay cancelled."""
    settings: dict[str, Any] = field(default_factory=dict)
    series: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    attempts: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=lambda: {"policy": "marble", "objective": "makespan"})


def row(number: int, **changes: Any) -> dict[str, Any]:
    """The row that the API has of a job that waits, with these changes. No note, which would be of its state before
    them."""
    of_spec = {name: value for name, value in changes.items() if name in OF_SPEC}
    job = Job(number, JobSpec(("train",), **{"name": f"job{number}", "user": "u"} | of_spec), 1000.0)
    world = SubmittedWorld(jobs={number: job}, nodes={"n1": Node("n1", (GpuInfo(0, "GPU-0"),), connected=True)})
    rows = RowBuilder(world, Profiles(), {number: "needs 1 GPU, 0 free"}, job.submitted_at)
    return rows.job(job) | {"note": None} | changes


def specs_of(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The specs of a submit's jobs, members of arrays included, as JSON has them."""
    entries = [{key: value for key, value in each.items() if key != "like"} for each in body["jobs"]]
    for each in submit_of(body | {"jobs": entries}).specs:
        entry = each if isinstance(each, Entry) else Entry(each)
        for spec in (entry.spec,) if entry.array is None else expand(entry.spec, entry.array, 1):
            yield json.loads(json.dumps(to_json(spec)))


class FakeDaemon:
    """Listens from `start` to `kill`; `start` again takes another port and writes another access file."""

    def __init__(self, home: Path, world: World | None = None) -> None:
        self.home = home
        self.world = world or World()
        self.requests: list[tuple[str, str, Any]] = []
        self.dies_at: str | None = None
        """The next request whose path begins so is carried out; then the daemon dies without an answer."""
        self.down_s: float | None = None
        """After such a death it is started again so many seconds later."""
        self.answers: dict[str, tuple[int, bytes]] = {}
        """Raw answers by path."""
        self._server: ThreadingHTTPServer | None = None
        self._sockets: list[socket.socket] = []
        self._restarter: threading.Timer | None = None
        self.instance = "d-fake"

    def start(self) -> "FakeDaemon":
        tls = self.home / "tls"
        if not tls.exists():
            make_private_folder(tls)
            certificate, key = make_certificate(["localhost"], now=time.time())
            write_new(tls / "certificate.pem", certificate)
            write_new(tls / "key.pem", key)
        context = server_context(tls / "certificate.pem", tls / "key.pem")
        self._server = _Server(self, context)
        port = self._server.server_address[1]
        pem = (tls / "certificate.pem").read_text()
        write_access(self.home, AccessFile(self.instance, "127.0.0.1", port, pem, TOKEN, pid=1, fence=1))
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def kill(self) -> None:
        """As SIGKILL: every connection is cut, nobody listens any more; the access file stays."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._sockets.clear()

    def close(self) -> None:
        """The end of the test."""
        if self._restarter is not None:
            self._restarter.cancel()
            self._restarter.join()
        self.kill()

    def die(self) -> None:
        """Nobody listens any more before the client's connection is cut: it would be answered if it asked at once."""
        self.kill()
        if self.down_s is not None:
            self._restarter = threading.Timer(self.down_s, self.start)
            self._restarter.start()

    def keep(self, connection: socket.socket) -> None:
        self._sockets.append(connection)

    def carry_out(self, method: str, target: str, body: Any) -> tuple[int, dict[str, Any]]:
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        jobs = self.world.jobs
        path = url.path
        if (method, path) == ("POST", "/v1/jobs"):
            ids = self.world.request_ids.get(body["request_id"])
            if ids is None:
                ids = []
                for number, spec in enumerate(specs_of(body), len(jobs) + 1):
                    jobs[number] = row(number, name=spec["name"], spec=spec, array=spec["array"] or None,
                                       max_parallel=spec["array_most"] or None)  # fmt: skip
                    ids.append(number)
                self.world.request_ids[body["request_id"]] = ids
            return 200, {"jobs": [jobs[number] for number in ids]}
        if path == "/v1/jobs":
            shown = [
                each
                for each in jobs.values()
                if query.get("all") or each["state"] not in ("DONE", "FAILED", "CANCELLED")
            ]
            if query.get("by") == "column":
                columns = {key: [each.get(key) for each in shown] for key in query["fields"].split(",")}
                known = {key: values for key, values in columns.items() if any(value is not None for value in values)}
                return 200, {"count": len(shown), "columns": known}
            return 200, {"jobs": shown}
        if (method, path) == ("POST", "/v1/jobs/verb"):
            told, errors = [], []
            array = body.get("array")
            chosen = [number for number, each in jobs.items() if array and each.get("array") == array]
            for number in [*body["ids"], *chosen]:
                if number not in jobs:
                    error = f"there is no job {number}: hpcdl ls --all lists them"
                    errors.append({"job": number, "error": error, "code": "unknown-job"})
                    continue
                jobs[number]["state"] = {"cancel": "CANCELLED", "suspend": "SUSPENDED"}.get(body["verb"], "QUEUED")
                told.append(jobs[number])
            return 200, {"jobs": told, "errors": errors, "cancelled": self.world.left}
        if match := re.fullmatch(r"/v1/jobs/(\d+)(/(\w+))?", path):
            number = int(match[1])
            if number not in jobs:
                return 404, {"error": f"there is no job {number}: hpcdl ls --all lists them", "code": "unknown-job"}
            if match[3] is None:
                return 200, {
                    "job": {**jobs[number], "incarnations": [{"number": 1, "state": "EXITED", "nodes": ["n1"]}]}
                }
            if match[3] == "why":
                return 200, {"job": number, "state": jobs[number]["state"], "reason": jobs[number]["reason"],
                             "details": ["job 1 holds n1:0"], "eta_s": 75.0}  # fmt: skip
            if match[3] == "attempts":
                return 200, {"job": number, "attempts": self.world.attempts.get(number, [])}
            if match[3] == "series":
                return 200, {"job": number, "series": self.world.series.get(number, [])}
            jobs[number]["state"] = {"cancel": "CANCELLED", "suspend": "SUSPENDED", "resume": "QUEUED"}[match[3]]
            return 200, {"jobs": [jobs[number]]}
        if path == "/v1/wait":
            ends = [part.split("-") for part in query["ids"].split(",")]
            ids = [number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)]
            if missing := [number for number in ids if number not in jobs]:
                return 404, {"error": f"there is no job {missing[0]}", "code": "unknown-job"}
            end = time.monotonic() + float(query["timeout"])
            while not (done := all(jobs[n]["state"] in ("DONE", "FAILED", "CANCELLED") for n in ids)):
                if time.monotonic() >= end or self._server is None:
                    break
                time.sleep(0.01)
            return 200, {"jobs": [jobs[number] for number in ids], "done": done}
        if path == "/v1/events":
            end = time.monotonic() + float(query.get("wait", 0))
            while True:
                events = list(self.world.events)  # those of one moment: a test adds more meanwhile
                found = [e for e in events if e["seq"] > int(query["after"])]
                if found or time.monotonic() >= end or self._server is None:
                    break
                time.sleep(0.01)
            if "job" in query:
                found = [e for e in found if e["stream"] == f"job/{query['job']}"]
            return 200, {"events": found[: int(query["limit"])], "last": len(events)}
        if path == "/v1/nodes":
            gpus = [
                {"index": 0, "uuid": "GPU-0", "name": "V100", "state": "ok", "detail": "",
                 "holder": {"job": 1, "incarnation": 2}},
                {"index": 1, "uuid": "GPU-1", "name": "V100", "state": "lost", "detail": "Xid 79", "holder": None},
            ]  # fmt: skip
            return 200, {"nodes": [{"name": "n1", "connected": True, "lost": False, "reason": "", "gpus": gpus}]}
        if path == "/v1/status":
            daemon = {"pid": 4711, "host": "h", "since_s": 61.0, "fence": 2, "version": "0", "home": str(self.home),
                      **self.world.config, "stopping": False}  # fmt: skip
            trainers = [{"pid": 7, "job": 1, "incarnation": 2, "node": "n1", "supervisor": 6}]
            agents = [{"pid": 5, "node": "n1", "connected": True}]
            return 200, {"daemon": daemon, "agents": agents, "trainers": trainers, "jobs": {"RUNNING": 1}, "events": 9}
        if path == "/v1/config":
            if method == "PUT" and body.get("policy") == "nope":
                return 400, {"error": "no policy nope: one of marble", "code": "bad-input"}
            self.world.config.update(body or {})
            return 200, {
                "config": self.world.config,
                "policies": ["marble", "fifo-exclusive"],
                "objectives": ["makespan"],
                "settings": self.world.settings,
            }
        return 404, {"error": f"no {path}", "code": "unknown-route"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, fake: FakeDaemon, context: ssl.SSLContext) -> None:
        self.fake = fake
        self.context = context
        super().__init__(("127.0.0.1", 0), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        try:
            with self.context.wrap_socket(request, server_side=True) as wrapped:
                self.fake.keep(wrapped)
                super().finish_request(wrapped, client_address)
        except OSError:
            pass  # the client went away, or we were killed

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else an answer waits for the acknowledgement of TLS's session tickets: 40 ms
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        fake = self.server.fake
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(raw) if raw else None
        fake.requests.append((self.command, self.path, body))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status, answer = 401, {"error": "the token is not this daemon's", "code": "token"}
        else:
            status, answer = fake.carry_out(self.command, self.path, body)
        if fake.dies_at is not None and self.path.startswith(fake.dies_at):
            fake.dies_at = None
            fake.die()
            self.close_connection = True
            return
        content = json.dumps({"schema": 1, **answer}).encode()
        if self.path in fake.answers:
            status, content = fake.answers[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _serve
