"""Which addresses are this host's: real ones, and names as somebody would answer for them."""

from __future__ import annotations

import contextlib
import socket

import pytest

from legato_gpu_agent.collectors import addresses
from legato_gpu_agent.collectors.addresses import is_local, own_addresses


class Names:
    """Answers for names, and counts how often it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **addresses: tuple[str, ...]) -> None:
        self.addresses, self.asked = addresses, list[str]()
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: str, port: int | None, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        self.asked.append(host)
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
def test_an_address_is_this_hosts(monkeypatch: pytest.MonkeyPatch, host: str, is_own: bool) -> None:
    """If a socket can be bound to it; nothing is looked up, whatever it says."""
    names = Names(monkeypatch)
    assert is_local(host) == is_own and names.asked == []


def test_what_can_be_bound_says_nothing_where_all_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ip_nonlocal_bind a stranger's address can be bound too: loopback's names alone are known for this host's then."""
    monkeypatch.setattr(addresses, "_can_bind", lambda _: True)
    assert [is_local(host) for host in ("10.1.2.3", "2001:db8::1", "127.0.0.1", "::1")] == [False, False, True, True]


def test_an_address_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it was not this host's is not remembered."""
    known: set[str] = set()
    monkeypatch.setattr(addresses, "_can_bind", lambda address: address in known)
    assert not is_local("10.1.2.3")
    known.add("10.1.2.3")
    assert is_local("10.1.2.3")


def test_a_name_is_this_hosts_where_one_of_its_addresses_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are told as clients have them; a name that stands for another host, or for none, has none."""
    names = Names(monkeypatch, gpu7=("10.1.2.3", "127.0.0.2", "::1"), other=("10.1.2.3",))
    assert own_addresses("gpu7") == {"127.0.0.2", "127.0.0.1"} and own_addresses("other") == frozenset()
    with pytest.raises(OSError, match="not known"):
        own_addresses("nobody")
    assert names.asked == ["gpu7", "other", "nobody"]
    assert own_addresses("localhost") == own_addresses("::1") == {"127.0.0.1"} and own_addresses("127.0.0.2") == {"127.0.0.2"}
    assert len(names.asked) == 3


@pytest.mark.parametrize("host", ["", "\0", "x" * 300, "a..b", "ü" * 70, "10.1.2.3"])
def test_no_text_breaks_it(host: str) -> None:
    """It is nobody's, or nobody knows it, by the real resolver too."""
    with contextlib.suppress(OSError):
        assert own_addresses(host) == frozenset()
