"""What readers of one tenant see of ClickHouse's errors."""

from __future__ import annotations

import clickhouse_connect
import pytest

from helpers.servers.ports import free_port
from legato_ingest.definitions import ALL_TENANTS
from legato_ingest.errors import StoreError, StoreRefused, StoreUnavailable
from legato_ingest.storage.client_errors import translated, without_values

MEMORY = (
    "Code: 241. DB::Exception: Query memory limit exceeded: would use 138.40 MiB (attempt to allocate chunk of 127.99 MiB), "
    "maximum: 100.00 MiB: while executing 'FUNCTION concat('secret') -> String : 0'. (MEMORY_LIMIT_EXCEEDED)"
)
RESULT = "Code: 396. DB::Exception: Limit for result exceeded, max bytes: 12.00 MiB, current bytes: 21.30 MiB. (TOO_MANY_ROWS_OR_BYTES)"
TIMEOUT = "Code: 159. DB::Exception: Timeout exceeded: elapsed 2000.273 ms, maximum: 2000.000 ms. (TIMEOUT_EXCEEDED)"
HIDDEN = "which is not shown to readers of one tenant. (DECIMAL_OVERFLOW)"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (
            StoreUnavailable(MEMORY, 241),
            "Code: 241. DB::Exception: the statement needs more memory than its limit of 100.00 MiB. (MEMORY_LIMIT_EXCEEDED)",
        ),
        (
            StoreUnavailable("Code: 74. DB::Exception: while reading part secret_1_1. (CANNOT_READ_FROM_FILE_DESCRIPTOR)", 74),
            "Code: 74. DB::Exception: the store cannot answer now, for a reason that is not shown to readers of one tenant: try again. "
            "(CANNOT_READ_FROM_FILE_DESCRIPTOR)",
        ),
        (
            StoreRefused(RESULT, 396),
            "Code: 396. DB::Exception: Limit for result exceeded, max bytes: 12.00 MiB. (TOO_MANY_ROWS_OR_BYTES)",
        ),
        (
            StoreRefused("Code: 407. DB::Exception: secret. (DECIMAL_OVERFLOW)", 407),
            f"Code: 407. DB::Exception: a function failed on a constant, or on the value of a row, {HIDDEN}",
        ),
        (StoreUnavailable(TIMEOUT, 159), TIMEOUT),
        (StoreUnavailable("the server is stopping", 0), "the server is stopping"),
    ],
)
def test_a_tenant_sees_the_kind_of_an_error_and_its_limit(error: StoreError, shown: str) -> None:
    """Values, sizes and parts are of all tenants; the class and the code stay, because handlers go by them."""
    with pytest.raises(type(error)) as raised, without_values("shop"):
        raise error
    assert (str(raised.value), raised.value.code) == (shown, error.code)


def test_a_tenant_does_not_see_the_address_of_the_store() -> None:
    """The driver names it when the server is away."""
    with pytest.raises(StoreUnavailable, match="cannot answer now") as raised, without_values("shop"), translated():
        clickhouse_connect.get_client(host="127.0.0.1", port=free_port(), username="legato")
    assert "127.0.0.1" not in str(raised.value)


def test_a_reader_of_all_tenants_sees_every_error() -> None:
    """It may read all rows."""
    with pytest.raises(StoreUnavailable) as raised, without_values(ALL_TENANTS):
        raise StoreUnavailable(MEMORY, 241)
    assert str(raised.value) == MEMORY
