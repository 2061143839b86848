"""An OTLP endpoint over the shared store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.servers.otlp import Endpoint, endpoint_over
from legato_ingest.metrics import Metrics
from legato_ingest.storage import Store
from legato_ingest.write.committer import Committer


@pytest.fixture(scope="module")
def lasting(shared_store: Store) -> Iterator[Endpoint]:
    """An endpoint over the shared store for one module; it accepts bodies up to 200,000 bytes."""
    metrics = Metrics()
    committer = Committer(shared_store, metrics, queue_bytes_max=2**26, chunks_max=10**6)
    with endpoint_over(committer, metrics, body_bytes_max=200_000) as endpoint:
        yield endpoint
    committer.close()


@pytest.fixture
def endpoint(store: Store, lasting: Endpoint) -> Endpoint:
    """The lasting endpoint over an empty store."""
    return lasting
