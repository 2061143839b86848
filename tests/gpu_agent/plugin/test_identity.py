"""The id of an engine: the plugin derives it from the command line and the agent from the URL, with the same result."""

from __future__ import annotations

import pytest

from legato_gpu_agent.plugin.identity import client_host, engine_id, engine_id_from_url, host_and_port


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "0.0.0.0", "::", "::1", "[::]", "[::1]"])
def test_this_host_has_one_name(host: str) -> None:
    """For every name of this host in the command line or in the URL."""
    url = f"http://[{host}]:8001/base" if host.startswith(":") else f"http://{host}:8001/base"
    assert client_host(host) == "127.0.0.1"
    assert engine_id({}, ["--host", host, "--port", "8001"]) == engine_id_from_url(url) == "127.0.0.1:8001"


@pytest.mark.parametrize("host", ["10.0.0.5", "127.0.0.2", "gpu7", "fd00::5", "::2", "localhost.example"])
def test_another_host_keeps_its_name(host: str) -> None:
    """Unchanged."""
    url = f"http://[{host}]:8001" if ":" in host else f"http://{host}:8001"
    assert engine_id({}, [f"--host={host}", "--port=8001"]) == engine_id_from_url(url) == f"{host}:8001"


@pytest.mark.parametrize(
    ("url", "place"),
    [("http://gpu7", ("gpu7", 80)), ("https://gpu7/a", ("gpu7", 443)), ("https://[fd00::5]:8000", ("fd00::5", 8000))],
)
def test_a_url_has_a_port(url: str, place: tuple[str, int]) -> None:
    """Its own, or else the default of its scheme."""
    assert host_and_port(url) == place
