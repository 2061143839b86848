"""Credentials of a request: where a token is found, and when user and password are accepted."""

from __future__ import annotations

import base64

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from legato_ingest.auth.credentials import denial, has_password_in_url, token_in


def request(query: str = "", **headers: str) -> Request:
    """Return a request with this query string and these headers (with _ for -)."""
    encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": encoded, "query_string": query.encode()})


def basic(user: str, password: str) -> str:
    """Return the value of an Authorization header for HTTP Basic."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "key", "token"),
    [
        ("Bearer abc", "", b"abc"),
        ("bearer  abc ", "", b"abc"),
        ("Basic bGVnYXRvOmFiYw==", "", b"abc"),
        ("Basic OmFiYzpk", "", b"abc:d"),
        ("", "abc", b"abc"),
        ("", "", None),
        ("Bearer", "", None),
        ("Bearer ", "", None),
        ("Basic !!", "", None),
        ("Basic bGVnYXRv", "", None),
        ("Digest abc", "", None),
        ("Digest abc", "abc", None),
    ],
)
def test_where_a_token_is_found(authorization: str, key: str, token: bytes | None) -> None:
    """In a Bearer header, as the password of Basic with any user, or in ClickHouse's header; nowhere else."""
    assert token_in(authorization, key) == token


@given(st.text(max_size=60), st.text(max_size=20))
def test_any_header_is_read_without_an_error(authorization: str, key: str) -> None:
    """No text of a header raises."""
    assert token_in(authorization, key) is None or isinstance(token_in(authorization, key), bytes)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": basic("reader", "pass:word")},
        {"authorization": basic("reader", "pass:word").replace("Basic", "basic")},
        {"x_clickhouse_user": "reader", "x_clickhouse_key": "pass:word"},
    ],
)
def test_user_and_password_are_accepted(headers: dict[str, str]) -> None:
    """As HTTP Basic or in ClickHouse's headers; a password may contain colons."""
    assert denial(request(**headers), "reader", "pass:word") == ""


@pytest.mark.parametrize(
    ("query", "headers", "message"),
    [
        ("", {}, "needs a user and a password"),
        ("", {"authorization": "Basic !!"}, "needs a user and a password"),
        ("", {"authorization": "Bearer s3cret"}, "needs a user and a password"),
        ("", {"x_clickhouse_key": "s3cret"}, "needs a user and a password"),
        ("", {"authorization": basic("reader", "wrong")}, "is wrong"),
        ("", {"authorization": basic("other", "s3cret")}, "is wrong"),
        ("", {"authorization": basic("reader", "s3cret"), "x_clickhouse_key": "s3cret"}, "two kinds"),
        ("user=reader&password=s3cret", {}, "must not carry"),
        ("password=s3cret", {"authorization": basic("reader", "s3cret")}, "must not carry"),
    ],
)
def test_a_denial_states_the_reason_and_quotes_nothing(query: str, headers: dict[str, str], message: str) -> None:
    """Missing, malformed, wrong, ambiguous credentials, and any in the URL."""
    found = denial(request(query, **headers), "reader", "s3cret")
    assert message in found and "s3cret" not in found


def test_a_password_in_the_url_is_detected() -> None:
    """Only the parameters that ClickHouse reads as credentials count."""
    assert has_password_in_url(request("user=x")) and has_password_in_url(request("a=1&password=x"))
    assert not has_password_in_url(request("query=SELECT+1&database=x"))
