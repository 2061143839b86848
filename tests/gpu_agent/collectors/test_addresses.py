"""Which addresses belong to this host: real addresses, and names with given answers."""

from __future__ import annotations

import contextlib
import socket

import pytest

from legato_gpu_agent.collectors import addresses
from legato_gpu_agent.collectors.addresses import is_local, local_addresses


class Names:
    """Answers queries for names, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **addresses: tuple[str, ...]) -> None:
        self.addresses, self.queried = addresses, list[str]()
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, port: int | None, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        self.queried.append(host)
        if host not in self.addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in self.addresses[host]]


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1", True),
        ("127.0.0.2", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("0.0.0.0", True),
        ("::", True),
        ("::1", True),
        ("10.1.2.3", False),
        ("240.0.0.1", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("127.1", False),
        ("127.0.0.01", False),
        ("fe80::1%lo", False),
        ("gpu7", False),
        ("", False),
        ("\0", False),
        ("x" * 300, False),
        ("١٢٧.0.0.1", False),
    ],
)
def test_a_local_address_can_be_bound(monkeypatch: pytest.MonkeyPatch, host: str, is_own: bool) -> None:
    """An address is local if a socket can be bound to it; no text is resolved."""
    names = Names(monkeypatch)
    assert is_local(host) == is_own and names.queried == []


def test_no_conclusion_where_every_address_can_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ip_nonlocal_bind any address can be bound; then only loopback's names count as local."""
    monkeypatch.setattr(addresses, "_can_bind", lambda _: True)
    assert [is_local(host) for host in ("10.1.2.3", "2001:db8::1", "127.0.0.1", "::1")] == [False, False, True, True]


def test_an_address_may_be_added_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative answer is not cached."""
    known: set[str] = set()
    monkeypatch.setattr(addresses, "_can_bind", lambda address: address in known)
    assert not is_local("10.1.2.3")
    known.add("10.1.2.3")
    assert is_local("10.1.2.3")


def test_a_name_is_local_if_one_of_its_addresses_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has the form of `client_host`; a name of another host, or an unknown one, has no local addresses."""
    names = Names(monkeypatch, gpu7=("10.1.2.3", "127.0.0.2", "::1"), other=("10.1.2.3",))
    assert local_addresses("gpu7") == {"127.0.0.2", "127.0.0.1"} and local_addresses("other") == frozenset()
    with pytest.raises(OSError, match="not known"):
        local_addresses("unknown")
    assert names.queried == ["gpu7", "other", "unknown"]
    assert local_addresses("localhost") == local_addresses("::1") == {"127.0.0.1"} and local_addresses("127.0.0.2") == {"127.0.0.2"}
    assert len(names.queried) == 3


@pytest.mark.parametrize("host", ["", "\0", "x" * 300, "a..b", "ü" * 70, "10.1.2.3"])
def test_no_text_raises(host: str) -> None:
    """Any text is not local, or cannot be resolved; also with the real resolver."""
    with contextlib.suppress(OSError):
        assert local_addresses(host) == frozenset()
