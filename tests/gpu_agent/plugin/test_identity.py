"""What an engine is called: by its plugin, from its command line, and by the agent, from its URL, alike."""

from __future__ import annotations

import pytest

from legato_gpu_agent.plugin.identity import client_host, engine_id, engine_id_of, place_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "0.0.0.0", "::", "::1", "[::]", "[::1]"])
def test_this_host_has_one_name(host: str) -> None:
    """Whichever of its names the command line or the URL has, the plugin and the agent say the same."""
    url = f"http://[{host}]:8001/base" if host.startswith(":") else f"http://{host}:8001/base"
    assert client_host(host) == "127.0.0.1"
    assert engine_id({}, ["--host", host, "--port", "8001"]) == engine_id_of(url) == "127.0.0.1:8001"


@pytest.mark.parametrize("host", ["10.0.0.5", "127.0.0.2", "gpu7", "fd00::5", "::2", "localhost.example"])
def test_another_host_keeps_its_name(host: str) -> None:
    """As it was told."""
    url = f"http://[{host}]:8001" if ":" in host else f"http://{host}:8001"
    assert engine_id({}, [f"--host={host}", "--port=8001"]) == engine_id_of(url) == f"{host}:8001"


@pytest.mark.parametrize(
    ("url", "place"),
    [("http://gpu7", ("gpu7", 80)), ("https://gpu7/a", ("gpu7", 443)), ("https://[fd00::5]:8000", ("fd00::5", 8000))],
)
def test_a_url_has_a_port(url: str, place: tuple[str, int]) -> None:
    """Its own, else its scheme's."""
    assert place_of(url) == place
