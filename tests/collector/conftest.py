"""The Collector for these tests: the built binary, or a reason why there is none."""

from __future__ import annotations

import pytest

from helpers.servers import collector


@pytest.fixture(scope="session", autouse=True)
def binary() -> None:
    """Builds it where it is not there yet."""
    if why := collector.missing():
        pytest.skip(why)
