"""Settings with ids: each id is unique within its setting."""

from __future__ import annotations

import re

import pytest

from legato_gpu_agent.agent.settings import Settings, SettingsError


@pytest.mark.parametrize(
    ("name", "value", "engine_id", "first", "second"),
    [
        ("LEGATO_KV_EVENTS", "e=tcp://h:5557,f=tcp://h:1,e=tcp://h:5558", "e", "tcp://h:5557", "tcp://h:5558"),
        ("LEGATO_FORWARD_PASSES", "e=tcp://h:1, e=tcp://h:2", "e", "tcp://h:1", "tcp://h:2"),
        ("LEGATO_REQUEST_FILES", "e=/a,e=/b", "e", "/a", "/b"),
        ("LEGATO_ENGINES", "https://gw/a,https://gw/b/", "gw:443", "https://gw/a", "https://gw/b"),
        ("LEGATO_ENGINES", "http://localhost:8000,http://[::1]:8000", "127.0.0.1:8000", "http://localhost:8000", "http://[::1]:8000"),
        ("LEGATO_ENGINES", "http://h:1,h:1=http://h:2", "h:1", "http://h:1", "http://h:2"),
        ("LEGATO_ITERATIONS", "e=http://h:1,e=http://h:2", "e", "http://h:1", "http://h:2"),
    ],
)
def test_a_repeated_id_is_rejected(name: str, value: str, engine_id: str, first: str, second: str) -> None:
    """Only one of its targets would be read, without any message: the error names both and the remedy."""
    wanted = f"{name} has the id '{engine_id}' twice, for {first} and {second}: give each a separate id, as in ID={second}"
    with pytest.raises(SettingsError, match=f"^{re.escape(wanted)}$"):
        Settings.from_env({name: value})


@pytest.mark.parametrize("name", ["LEGATO_ENGINES", "LEGATO_ITERATIONS", "LEGATO_ENDPOINT"])
@pytest.mark.parametrize("url", ["http://me:hidden@h:1/a", "https://hidden@h", "http://me:hid/den@h:0"])
def test_credentials_in_a_url_are_refused(name: str, url: str) -> None:
    """They were printed and not sent. The error does not quote them."""
    for value in (url, f"e={url}", f"http://other:1,{url}")[: 1 if name == "LEGATO_ENDPOINT" else 3]:
        with pytest.raises(
            SettingsError, match=f"^{name} has a.* a user or a password.* which the agent does not send: remove them"
        ) as caught:
            Settings.from_env({name: value})
        assert "hid" not in str(caught.value) and "me:" not in str(caught.value)
    assert Settings.from_env({"LEGATO_ENGINES": "e=https://gw/@team"}).engines == (("e", "https://gw/@team"),)


def test_unique_ids_are_accepted() -> None:
    """Another setting may have the same id, for further data of that engine."""
    environ = {
        "LEGATO_ENGINES": "a=https://gw/a,b=https://gw/b,e=http://h:1",
        "LEGATO_KV_EVENTS": "e=tcp://h:5557,e/1=tcp://h:5558",
        "LEGATO_FORWARD_PASSES": "e=tcp://h:1",
    }
    settings = Settings.from_env(environ)
    assert settings.engines == (("a", "https://gw/a"), ("b", "https://gw/b"), ("e", "http://h:1"))
    assert settings.kv_events == (("e", "tcp://h:5557"), ("e/1", "tcp://h:5558")) and settings.forward_passes == (("e", "tcp://h:1"),)
