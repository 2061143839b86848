"""Fixture for these tests: the built Collector binary, or a skip with the reason why there is none."""

from __future__ import annotations

import pytest

from helpers.servers import collector


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """Build the Collector if it has not been built yet; skip the tests if that is not possible."""
    if why := collector.missing():
        pytest.skip(why)
