"""Tests of sessions: how long they live, and how many there are."""

from __future__ import annotations

from fastapi import Request, Response

from legato_ingest.web.session import COOKIE, Sessions

HOUR_S = 3_600.0


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def begun(sessions: Sessions, authorization: str) -> str:
    """The identifier of a new session."""
    response = Response()
    sessions.begin(response, authorization, secure=False)
    return response.headers["set-cookie"].partition("=")[2].partition(";")[0]


def credentials(sessions: Sessions, identifier: str) -> str | None:
    """The credentials of a request with this cookie."""
    headers = [(b"cookie", f"{COOKIE}={identifier}".encode())]
    return sessions.authorized(Request({"type": "http", "headers": headers})).headers.get("authorization")


def test_a_session_ends_after_twelve_hours_and_its_credentials_are_forgotten() -> None:
    """An expired session gives nothing, and the next one that begins removes its credentials from memory."""
    clock = Clock()
    sessions = Sessions(clock)
    first = begun(sessions, "Bearer one")
    clock.now_s = 11.9 * HOUR_S
    assert credentials(sessions, first) == "Bearer one"
    clock.now_s = 12.1 * HOUR_S
    assert credentials(sessions, first) is None
    begun(sessions, "Bearer two")
    assert "Bearer one" not in str(vars(sessions))


def test_one_reader_cannot_end_the_sessions_of_others() -> None:
    """Beyond twenty sessions of the same credentials, their oldest ends; all together there are at most a thousand."""
    sessions = Sessions(Clock())
    other = begun(sessions, "Bearer other")
    own = [begun(sessions, "Bearer greedy") for _ in range(1_500)]
    assert credentials(sessions, other) == "Bearer other"
    assert [credentials(sessions, each) for each in own[-21:]] == [None, *["Bearer greedy"] * 20]
    for number in range(1_100):
        begun(sessions, f"Bearer {number}")
    assert len(vars(sessions)["_credentials"]) == 1_000 and credentials(sessions, other) is None
