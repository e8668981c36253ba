"""Which database errors are transient, and which are permanent."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors
from psycopg_pool import PoolTimeout

from holdfast.api.problems import of_the_database
from holdfast.database.pool import careful, is_permanent, our_settings, parts_of

OPERATIONAL = {
    kind.sqlstate
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, psycopg.OperationalError) and kind.sqlstate is not None
}
PASSES = {
    *("08000", "08001", "08003", "08004", "08006", "08007", "08P01", "28000", "28P01"),
    *("40000", "40001", "40003", "40P01", "53000", "53100", "53200", "53300", "53400", "55006", "55P03"),
    *("57000", "57014", "57P01", "57P02", "57P03", "57P04", "57P05", "58000", "58030", "F0000", "F0001"),
}


@pytest.mark.parametrize("state", sorted(OPERATIONAL))
def test_every_operational_error_is_classified(state: str) -> None:
    assert is_permanent(errors.lookup(state)("…")) is (state not in PASSES)


def test_lost_connection_without_a_code_is_transient() -> None:
    for error in (psycopg.OperationalError("gone"), psycopg.InterfaceError("closed"), PoolTimeout("none free"), OSError("no")):
        assert not is_permanent(error)
    for kind in (errors.ReadOnlySqlTransaction, errors.IdleInTransactionSessionTimeout, errors.lookup("25P04")):
        assert not is_permanent(kind("of a standby, or after a pause of this process"))


@pytest.mark.parametrize("kind", [errors.UniqueViolation, errors.UndefinedTable, errors.InvalidTextRepresentation])
def test_other_errors_are_permanent(kind: type[psycopg.Error]) -> None:
    assert is_permanent(kind("no"))


@pytest.mark.parametrize(
    ("state", "slug"),
    [
        *[
            ("54000", "invalid-request"),
            ("54001", "invalid-request"),
            ("22003", "invalid-request"),
            ("23514", "invalid-request"),
        ],
        *[("55000", "internal"), ("39000", "internal")],
        *[("08006", "database-unavailable"), ("53300", "database-unavailable")],
        *[("55P03", "busy"), ("57014", "too-slow"), ("25006", "database-unavailable")],
    ],
)
def test_api_offers_a_retry_only_of_what_may_succeed(state: str, slug: str) -> None:
    problem = of_the_database(errors.lookup(state)("…"))

    assert (problem.slug, "Retry-After" in problem.headers) == (slug, slug not in ("invalid-request", "internal"))


def test_no_startup_options_are_sent() -> None:
    """PgBouncer refuses a connection whose startup packet has `options`."""
    assert "options" not in parts_of(careful("postgresql://me@here/db"))
    assert "idle_in_transaction_session_timeout = '10s'" in our_settings("postgresql://me@here/db")


def test_options_of_the_url_are_kept_and_its_idle_limit_wins() -> None:
    url = "postgresql://me@here/db?options=-c%20idle_in_transaction_session_timeout%3D3s"

    assert parts_of(careful(url))["options"] == "-c idle_in_transaction_session_timeout=3s"
    assert "idle_in_transaction" not in our_settings(url)
