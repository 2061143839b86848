"""Fixtures for the tests of the agent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.servers.serving import Served, serve_process


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A `legato serve` for all tests that send to one; each test uses engine ids or host names that no other test uses."""
    with serve_process(tmp_path_factory.mktemp("serve") / "store") as served:
        yield served
