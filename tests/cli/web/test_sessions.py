"""One-time links, and the sessions that they open."""

from hpcdl.cli.web import sessions
from hpcdl.cli.web.sessions import WebSessions


def test_a_link_opens_once() -> None:
    found = WebSessions(lambda: 0.0)
    link = found.new_link()
    cookie = found.open(link)
    assert cookie is not None
    assert found.known(cookie)
    assert found.open(link) is None
    assert not found.known(link)
    assert not found.known("")
    assert found.open("") is None


def test_a_new_link_kills_the_one_before_it() -> None:
    found = WebSessions(lambda: 0.0)
    old, new = found.new_link(), found.new_link()
    assert found.open(old) is None
    assert found.open(new) is not None


def test_links_and_sessions_end() -> None:
    now = [0.0]
    found = WebSessions(lambda: now[0])
    late = found.new_link()
    now[0] = sessions.LINK_S
    assert found.open(late) is None
    cookie = found.open(found.new_link())
    assert cookie is not None
    now[0] += sessions.LIFE_S - 1
    assert found.known(cookie)
    now[0] += 1
    assert not found.known(cookie)


def test_one_session_too_many_ends_the_first() -> None:
    found = WebSessions(lambda: 0.0)
    cookies = [found.open(found.new_link()) or "" for _ in range(sessions.MOST + 1)]
    assert [found.known(cookie) for cookie in cookies] == [False] + [True] * sessions.MOST
