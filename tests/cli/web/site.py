"""`hpcdl web` as a process beside a daemon that is only its API, and who visits it without a browser."""

import http.client
import json
import os
import re
import selectors
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.fake import FakeDaemon
from tests.cli.fake import row as full_row
from tests.cli.test_process import argv, environment
from tests.report.test_live import answer, gpu, node, row
from tests.support.waiting import until

SOON_S = 180.0


def tell(fake: FakeDaemon, **more: Any) -> None:
    """What the daemon answers from now on, whatever was known before."""
    overview = json.dumps({"schema": 1, **answer(**({"last": 0} | more))}).encode()
    fake.answers["/v1/overview?after=0"] = (200, overview)
    rows = [*more.get("running", ()), *more.get("waiting", ())]
    found = {each["id"]: full_row(each["id"]) | each for each in rows}
    fake.world.jobs = found
    jobs = json.dumps({"schema": 1, "jobs": list(found.values())}).encode()
    fake.answers["/v1/jobs?all=1&last=500"] = (200, jobs)


def two_jobs(state: str = "RUNNING") -> dict[str, Any]:
    """An overview with job 1 in this state on a GPU, and job 2, which waits."""
    running = row(1, name="resnet-50", state=state, gpus=1, on=["n1"], step=30, total=120)
    return {
        "nodes": [node("n1", gpu(0, 1), gpu(1))],
        "running": [running],
        "waiting": [row(number, name=f"vgg-{number}") for number in range(2, 9)],
        "names": {"1": "resnet-50"},
    }


@dataclass
class Site:
    """The process, what it printed, and where it listens."""

    process: "subprocess.Popen[bytes]"
    socket: Path | None
    printed: bytes = b""
    read: int = 0  # of what was printed

    def next_link(self) -> str:
        """The next link that it prints."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (found := re.compile(rb"http\S+/open/\S+\n").search(self.printed, self.read)) is None:
                assert selector.select(SOON_S), f"no link after {self.printed!r}"
                piece = os.read(self.process.stdout.fileno(), 4096)
                assert piece, f"it ended: {self.printed!r}"
                self.printed += piece
        self.read = found.end()
        return found[0].decode().strip()


@contextmanager
def site(home: Path, *options: object, first: str = "") -> Iterator[Site]:
    """`hpcdl web`, until the end of the block. `first`: Python that runs before it in its process."""
    command = argv("web", *options)
    if first:
        command[1:3] = ["-c", f"import sys\n{first}\nfrom hpcdl.cli import main\nsys.exit(main())"]
    process = subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield Site(process, None if options else home / "web.sock")
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=SOON_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("unused", timeout=SOON_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SOON_S)
        self.sock.connect(str(self._path))


@dataclass
class Visitor:
    """Who asks one site, as a browser would: with a host, and with a cookie once there is one."""

    where: Path | int  # a socket, or a port with TLS
    host: str
    cookie: str = ""

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """The answer to one request."""
        connection: http.client.HTTPConnection
        if isinstance(self.where, Path):
            connection = _UnixConnection(self.where)
        else:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection("127.0.0.1", self.where, timeout=SOON_S, context=context)
        try:
            sent = {"Host": self.host, **({"Cookie": self.cookie} if self.cookie else {}), **headers}
            connection.request(method, path, headers=sent)
            got = connection.getresponse()
            found = {name.lower(): value for name, value in got.getheaders()}
            return Reply(got.status, found, got.read().decode())
        finally:
            connection.close()

    def open(self, link: str) -> Reply:
        """Open a link, and keep the cookie."""
        reply = self.get("/open/" + link.partition("/open/")[2])
        if reply.status == 200:
            self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return reply

    def until(self, path: str, words: str) -> str:
        """The page, once it says that."""
        texts = [""]

        def says() -> bool:
            texts.append(self.get(path).text)
            return words in texts[-1]

        until(says, f"{path} to say {words!r}", story=lambda: texts[-1][-3000:])
        return texts[-1]


def host_of(link: str) -> str:
    """The host and port of a link."""
    match = re.match(r"https?://([^/]+)/open/", link)
    assert match is not None, link
    return match[1]
