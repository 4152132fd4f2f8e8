"""`hpcdl web` without a browser: who is let in, what every answer says, and what happens without a daemon."""

import http.client
import os
import re
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest

from hpcdl.cli.web.job_log import plain
from hpcdl.cli.web.server import CONNECTIONS
from tests.cli.fake import FakeDaemon
from tests.cli.test_process import argv, environment
from tests.cli.web.site import SOON_S, Site, Visitor, host_of, site, tell, two_jobs
from tests.ledger.test_recorded_home import home as recorded_home
from tests.security.stranger import UID, WHY_NOT, as_uid, held_by
from tests.support.ports import free_port

recorded = recorded_home
"""A home of an earlier version, with jobs in every state."""

ROUTES = ("/", "/jobs", "/job/1", "/job/1/log", "/node/n1", "/timeline", "/nothing", "/open/", "/open/x")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web") / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="module")
def fake(home: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(home).start()
    tell(daemon, **two_jobs())
    yield daemon
    daemon.close()


@pytest.fixture(scope="module")
def served(fake: FakeDaemon, home: Path) -> Iterator[tuple[Site, Visitor]]:
    """The site, and a visitor who has opened its first link."""
    with site(home) as found:
        link = found.next_link()
        assert found.socket is not None
        visitor = Visitor(found.socket, host_of(link))
        assert visitor.open(link).status == 200
        yield found, visitor


def test_strangers_are_told_nothing(served: tuple[Site, Visitor]) -> None:
    known = served[1]
    for cookie in ("", "x=y", known.cookie[:-1], known.cookie.partition("=")[0] + "="):
        stranger = Visitor(known.where, known.host, cookie)
        for path in ROUTES:
            reply = stranger.get(path)
            assert reply.status == 403, path
            assert "resnet" not in reply.text
            assert "set-cookie" not in reply.headers


def test_only_its_own_hosts_are_served(served: tuple[Site, Visitor]) -> None:
    known = served[1]
    for host in ("evil.example", "evil.example:8787", f"x.{known.host}", "localhost.evil.example", ""):
        assert Visitor(known.where, host, known.cookie).get("/").status == 421, host
    for host in (known.host, known.host.partition(":")[0], "localhost:1", "127.0.0.1:2", "[::1]:3"):
        assert Visitor(known.where, host, known.cookie).get("/").status == 200, host


def test_nothing_but_get(served: tuple[Site, Visitor]) -> None:
    known = served[1]
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        for path in ("/", "/open/x", "/job/1"):
            assert known.get(path, method).status == 405, (method, path)


def test_every_answer_is_locked_up(served: tuple[Site, Visitor]) -> None:
    known = served[1]
    for path in ROUTES:
        headers = known.get(path).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_pages(served: tuple[Site, Visitor], home: Path) -> None:
    known = served[1]
    assert "resnet" in known.get("/").text
    assert "vgg-" in known.get("/jobs").text
    job = known.get("/job/1")
    assert job.status == 200
    assert "job 1 holds n1:0" in job.text
    assert '<a href="/job/1">' in known.get("/node/n1").text
    assert known.get("/timeline").status == 200
    for path in ("/job/99", "/node/n9", "/job/x", "/job/1/", "/jobs/1", "/%2e%2e/access.json"):
        assert known.get(path).status == 404, path


def test_a_log_is_given_piece_by_piece(served: tuple[Site, Visitor], home: Path) -> None:
    known, folder = served[1], home / "logs" / "1"
    folder.mkdir(parents=True)
    first = folder / "1.n1.log"
    first.write_bytes(b"<b>one</b>\n\x1b[31mtwo\x1b[0m\n")
    reply = known.get("/job/1/log")
    assert (reply.status, reply.text) == (200, "<b>one</b>\ntwo\n")
    assert reply.headers["content-type"].startswith("text/plain")
    with first.open("ab") as file:
        file.write(b"three\n")
    more = known.get(f"/job/1/log?after={reply.headers['x-log-after']}")
    assert more.text == "three\n"
    assert known.get(f"/job/1/log?after={more.headers['x-log-after']}").text == ""
    for after in ("1.n1.log:", "1.n1.log:-1", "../x:0", ";../x:0,", "1.n1.log;1.n1.log:" + "9" * 40, "%00:1", ";,;"):
        assert known.get(f"/job/1/log?after={after}").status == 200, after
    assert known.get("/job/2/log").text == ""


def test_a_log_of_many_nodes_with_long_names_is_followed(served: tuple[Site, Visitor], home: Path) -> None:
    known, folder = served[1], home / "logs" / "4"
    folder.mkdir(parents=True)
    logs = [folder / f"{attempt}.{'n' * 60}{node:03}.log" for attempt in (1, 2, 3) for node in range(100)]
    for log in logs[:100]:
        log.write_bytes(b"first\n")
    cursor, text = known.get("/job/4/log").headers["x-log-after"], ""
    for log in logs:  # of the first attempt much is to be read yet when the third has begun
        with log.open("ab") as file:
            file.write(b"x" * 999 + b"\n")
            file.write(b"y" * 19_999 + b"\n")
    for _ in range(20):
        query = urlencode({"after": cursor})
        assert len(query) < 8 << 10, "the server takes 16 KiB of a request, its headers too, where it comes in pieces"
        reply = known.get(f"/job/4/log?{query}")
        assert reply.status == 200
        cursor, text = reply.headers["x-log-after"], text + reply.text
    assert text.count("y") == 100 * 19_999, "of an attempt that is seen first now only the end is shown"


def test_a_log_that_is_shorter_or_no_file(served: tuple[Site, Visitor], home: Path) -> None:
    known, folder = served[1], home / "logs" / "3"
    folder.mkdir(parents=True)
    log = folder / "1.n1.log"
    log.write_bytes(b"a long first line\n")
    after = known.get("/job/3/log").headers["x-log-after"]
    log.write_bytes(b"anew\n")
    again = known.get(f"/job/3/log?after={after}")
    assert again.text == "anew\n"
    log.unlink()
    os.mkfifo(log)
    assert known.get("/job/3/log").text == ""
    for digits in (19, 300, 5000):
        assert known.get(f"/job/{'9' * digits}/log").status == 404
        assert known.get(f"/job/{'9' * digits}").status == 404


def test_other_servers_cookies_of_localhost_keep_nobody_out(served: tuple[Site, Visitor]) -> None:
    known = served[1]
    for others in ('prefs={"a":1}', "a=b c", "a=[1,2]", "x", "=y", ""):
        for cookie in (f"{others}; {known.cookie}", f"{known.cookie};{others}"):
            assert Visitor(known.where, "localhost", cookie).get("/").status == 200, cookie


def test_idle_connections_keep_nobody_out(served: tuple[Site, Visitor]) -> None:
    known = served[1]
    with ExitStack() as stack:
        for _ in range(CONNECTIONS + 6):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            idle.settimeout(SOON_S)
            idle.connect(str(known.where))
            idle.sendall(b"GET / HT")
        assert known.get("/").status == 200


def test_a_connection_without_a_request_is_ended(fake: FakeDaemon) -> None:
    soon = "from hpcdl.cli.web import server\nserver.FIRST_S = 0.2"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "s"
        with site(fake.home, "--socket", path, first=soon) as found:
            found.next_link()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as idle:
                idle.settimeout(SOON_S)
                idle.connect(str(path))
                assert idle.recv(1) == b""


def test_a_link_works_once_and_not_for_who_only_looks_ahead(served: tuple[Site, Visitor]) -> None:
    found, known = served
    link = found.next_link()
    secret = "/open/" + link.partition("/open/")[2]
    other = Visitor(known.where, known.host)
    for headers in ({"Sec-Purpose": "prefetch;prerender"}, {"Purpose": "prefetch"}):
        assert other.get(secret, **headers).status == 403
    opened = other.open(link)
    assert opened.status == 200
    told = opened.headers["set-cookie"].lower()
    assert "httponly" in told
    assert "samesite=strict" in told
    assert "secure" not in told, "what ssh forwards is no TLS"
    assert "domain" not in told
    assert other.get("/").status == 200
    assert Visitor(known.where, known.host).open(link).status == 403
    assert link.partition("/open/")[2] not in opened.text


def test_the_socket_is_its_owners(served: tuple[Site, Visitor], home: Path) -> None:
    path = home / "web.sock"
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = subprocess.run(argv("web"), env=environment(home), capture_output=True, text=True, timeout=SOON_S)
    assert second.returncode == 1
    assert "is served already" in second.stderr


def asked(family: int, where: object, cookie: str) -> str:
    """The status line of an answer to who has the cookie; "" where the connection was ended without one."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(SOON_S)
        try:
            connection.connect(where)  # type: ignore[arg-type]
            connection.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
            return connection.recv(100).partition(b"\r\n")[0].decode()
        except (ConnectionError, TimeoutError) as error:
            return "" if isinstance(error, ConnectionError) else "no answer"


@pytest.mark.skipif(os.geteuid() != 0, reason=WHY_NOT)
def test_another_user_is_refused_even_with_the_cookie_and_through_open_modes(fake: FakeDaemon) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are closed to others
        os.chmod(folder, 0o711)  # noqa: S103
        path = Path(folder) / "s"
        with site(fake.home, "--socket", path) as found:
            link = found.next_link()
            os.chmod(path, 0o666)  # noqa: S103
            known = Visitor(path, host_of(link))
            assert known.open(link).status == 200
            assert asked(socket.AF_UNIX, str(path), known.cookie) == "HTTP/1.1 200 OK"
            assert as_uid(UID, lambda: asked(socket.AF_UNIX, str(path), known.cookie)) == ""
        assert not path.exists(), "it is removed at the end"


@pytest.mark.skipif(os.geteuid() != 0, reason=WHY_NOT)
def test_another_user_is_refused_on_loopback(fake: FakeDaemon) -> None:
    port = int(free_port())
    with site(fake.home, "--port", port) as found:
        link = found.next_link()
        known = Visitor(port, host_of(link))
        assert known.open(link).status == 200

        def through_tls() -> str:
            try:
                return str(known.get("/").status)
            except OSError:
                return "ended"
            except http.client.HTTPException:
                return "ended"

        assert through_tls() == "200"
        assert as_uid(UID, through_tls) == "ended"


@pytest.mark.skipif(os.geteuid() != 0, reason=WHY_NOT)
def test_another_users_silent_connections_keep_nobody_out(fake: FakeDaemon) -> None:
    """More than the server has descriptors for: each is ended before its TLS handshake, and takes nobody's place."""
    port = int(free_port())
    few = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))"
    with site(fake.home, "--port", port, first=few) as found:
        link = found.next_link()
        known = Visitor(port, host_of(link))

        def crowd() -> list[socket.socket]:
            kept = []
            for number in range(300):
                with suppress(OSError):  # it was ended so soon
                    kept.append(socket.create_connection(("127.0.0.1", port), timeout=SOON_S))
                    kept[-1].sendall(b"\x16\x03\x01\x02\x00\x01\x00"[: number % 8])
            return kept

        with held_by(UID, crowd):
            assert known.open(link).status == 200
            assert "resnet" in known.get("/").text
            assert len(os.listdir(f"/proc/{found.process.pid}/fd")) < 100


def test_without_a_daemon_it_says_so_and_recovers(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    with site(home) as found:
        link = found.next_link()
        assert found.socket is not None
        known = Visitor(found.socket, host_of(link))
        assert re.search(rb"hpcdl daemon start; the pages show nothing until a daemon answers\n", found.printed)
        known.open(link)
        assert "hpcdl daemon start" in known.get("/").text
        fake = FakeDaemon(home)
        tell(fake, **two_jobs())
        fake.start()
        try:
            known.until("/", "resnet")
            fake.kill()
            text = known.until("/", 'class="stale"')
            assert "This is how it was at" in text
            assert "resnet" in text
            fake.start()
            end = known.until("/", "adaptive for jct")
            assert "resnet" in end
            known.until("/job/1", "job 1 holds n1:0")
        finally:
            fake.close()
        found.process.terminate()
        assert found.process.wait(SOON_S) == 128 + 15
    assert not (home / "web.sock").exists()


def test_without_a_daemon_it_serves_the_ledger(recorded: Path) -> None:
    (recorded / "lease.3").unlink()  # its daemon gave it back
    (recorded / "access.json").unlink()
    with site(recorded) as found:
        link = found.next_link()
        assert found.socket is not None
        known = Visitor(found.socket, host_of(link))
        assert re.search(rb"hpcdl daemon start; the pages show how it was last\n", found.printed)
        known.open(link)
        for page, words in (("/", "QUEUED"), ("/jobs", "FAILED"), ("/job/4", "Where it stands"), ("/timeline", "")):
            text = known.get(page).text
            assert "No daemon runs: start one with: hpcdl daemon start" in text, page
            assert words in text, page
        found.process.terminate()
        assert found.process.wait(SOON_S) == 128 + 15


def test_on_loopback_there_is_tls(fake: FakeDaemon) -> None:
    port = int(free_port())
    with site(fake.home, "--port", port) as found:
        link = found.next_link()
        assert link.startswith("https://")
        known = Visitor(port, host_of(link))
        assert known.get("/").status == 403
        opened = known.open(link)
        assert opened.headers["set-cookie"].startswith("__Host-")
        assert "secure" in opened.headers["set-cookie"].lower()
        assert "resnet" in known.get("/").text
        assert stat.S_IMODE((fake.home / "web" / "key.pem").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content, text",
    [
        (b"a\r\nb\n", "a\nb\n"),
        (b"10 %\r50 %\r100 %\n", "100 %\n"),
        (b"\x1b]0;title\x07x\x1b[1;32my\x1b[0m\x07\n", "xy\ufffd\n"),
        ("\u202eevil\tü\n".encode(), "\ufffdevil\tü\n"),
        (b"\xff\x00", "\ufffd\ufffd"),
    ],
)
def test_output_becomes_plain_text(content: bytes, text: str) -> None:
    assert plain(content) == text


@pytest.mark.parametrize(
    "options, words",
    [
        (("--socket", "/x", "--port", "1"), "exclude each other"),
        (("--socket", "/" + "x" * 120), "longer than 107 bytes"),
        (("--socket", "/nowhere/s"), "cannot listen on"),
        (("--port", "0"), "--port"),
    ],
)
def test_wrong_options_are_one_line(home: Path, options: tuple[str, ...], words: str) -> None:
    done = subprocess.run(argv("web", *options), env=environment(home), capture_output=True, text=True, timeout=SOON_S)
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
