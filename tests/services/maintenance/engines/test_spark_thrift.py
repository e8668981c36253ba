"""Spark over the protocol of HiveServer2, on a server without a JVM. `make test-real` has a real Spark Thrift Server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from hive_server import HiveServer, hive_server, numbers, texts
from holdfast.errors import UsageError
from holdfast.services.maintenance.engines.actions import ExpireSnapshots, RewriteManifests
from holdfast.services.maintenance.engines.interface import EngineFailed, TableConflict, TableRef, TableRefused, never_cancelled
from holdfast.services.maintenance.engines.spark import SparkMaintenance
from holdfast.services.maintenance.engines.spark_thrift import ThriftLink, ThriftOptions
from holdfast.services.maintenance.engines.sql_engine import LOOK, Stopped

TAG = "holdfast-0b6e5d5c-9a0c-4c53-8f43-0d3b3f6c6f11"
STACK = "org.apache.hive.service.cli.HiveSQLException: Error running query: {}\n\tat org.apache.spark.AnalysisException.x(y)\n"


@pytest.fixture
def server() -> Iterator[HiveServer]:
    with hive_server() as made:
        yield made


@pytest.fixture
def link(server: HiveServer) -> Iterator[ThriftLink]:
    """The connection of the worker."""
    made = ThriftLink(ThriftOptions(server.url, sasl=False))
    yield made
    made.close()


@pytest.fixture
def other(server: HiveServer) -> Iterator[ThriftLink]:
    """The connection of another process."""
    made = ThriftLink(ThriftOptions(server.url, sasl=False))
    yield made
    made.close()


def look(link: ThriftLink, sql: str) -> list[tuple[object, ...]]:
    return link.run(sql, LOOK, "", never_cancelled)


class Running:
    """A statement of an attempt in a thread of its own."""

    def __init__(self, link: ThriftLink, server: HiveServer, cancelled: Callable[[], bool] = never_cancelled) -> None:
        self.end: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=[link, cancelled])
        self._thread.start()
        assert server.began.wait(30)

    def _run(self, link: ThriftLink, cancelled: Callable[[], bool]) -> None:
        try:
            link.run("CALL long()", TAG, "rewrite_data_files", cancelled)
        except (EngineFailed, Stopped) as error:
            self.end.append(error)

    def ended(self) -> BaseException:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.end[0]


def test_rows_have_numbers_texts_and_nulls(server: HiveServer, link: ThriftLink):
    server.answers["SELECT x"] = [numbers(1, None, 3), texts("a", "b", None)]

    assert look(link, "SELECT x") == [(1, "a"), (None, "b"), (3, None)]
    assert look(link, "SET x") == []


def test_the_statement_of_an_action_is_the_same_as_over_connect_with_the_tag_of_its_attempt(
    server: HiveServer, link: ThriftLink
):
    """T-03: all actions of an attempt run in its one session."""
    server.answers["SELECT unix_micros(current_timestamp())"] = [numbers(1_710_028_800_000_000)]
    engine = SparkMaintenance(link, {"lake": "ice"})
    table = TableRef("lake", "sales", "orders")
    actions = {"rewrite_manifests": RewriteManifests(), "expire_snapshots": ExpireSnapshots(7 * 86400, 2)}
    statements = {name: engine.statement(table, action) for name, action in actions.items()}
    engine.begin(TAG)

    for name, sql in statements.items():
        engine.query(sql, TAG, name)

    assert server.statements[-2:] == [f"/* {TAG} {name} */ {sql}" for name, sql in statements.items()]
    assert list(server.sessions.values()).count(TAG) == 1
    engine.end(TAG)
    assert TAG not in server.sessions.values()


def test_sessions_that_only_read_are_used_again(server: HiveServer, link: ThriftLink):
    look(link, "SELECT 1")
    look(link, "SELECT 2")

    assert len(server.sessions) == 1


def test_a_look_is_sent_again_if_the_server_has_ended_the_idle_session(server: HiveServer, link: ThriftLink):
    server.answers["SELECT 2"] = [numbers(2)]
    look(link, "SELECT 1")
    server.sessions.clear()

    assert look(link, "SELECT 2") == [(2,)]


def test_work_of_an_attempt_is_found_by_another_process_and_ends_with_its_session(
    server: HiveServer, link: ThriftLink, other: ThriftLink
):
    """E-50: the handle that `begin` returned is enough. A statement that comes later is refused."""
    server.held.add("CALL long()")
    handle = link.begin(TAG)
    running = Running(link, server)

    assert other.find(handle) == handle
    other.stop(handle)

    assert isinstance(running.ended(), EngineFailed)
    assert other.find(handle) is None
    other.stop(handle)
    with pytest.raises(EngineFailed, match="Invalid SessionHandle"):
        link.run("CALL another()", TAG, "rewrite_manifests", never_cancelled)


def test_secret_of_a_session_is_in_no_repr(link: ThriftLink):
    _, _, secret = link.begin(TAG).partition(".")

    shown = repr(link)

    assert TAG in shown
    for told in (secret, repr(bytes.fromhex(secret))):
        assert told not in shown


def test_an_attempt_that_recorded_no_session_has_started_no_work(link: ThriftLink):
    assert link.find(TAG) is None
    link.stop(TAG)
    with pytest.raises(EngineFailed, match="the session of .* has ended"):
        link.run("CALL long()", TAG, "rewrite_data_files", never_cancelled)


def test_cancel_stops_the_statement_on_the_server(server: HiveServer, link: ThriftLink):
    server.held.add("CALL long()")
    link.begin(TAG)
    cancel = threading.Event()
    running = Running(link, server, cancel.is_set)

    cancel.set()

    assert isinstance(running.ended(), Stopped)
    assert (server.cancels, server.operations) == (1, {})


def test_the_session_of_an_attempt_ends_with_the_attempt(server: HiveServer, link: ThriftLink, other: ThriftLink):
    """T-03"""
    handle = link.begin(TAG)

    link.end(TAG)

    assert other.find(handle) is None
    assert server.sessions == {}


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("org.apache.iceberg.exceptions.ValidationException: Missing required files to delete", TableConflict),
        ("[TABLE_OR_VIEW_NOT_FOUND] The table cannot be found", TableRefused),
        ("java.net.ConnectException", EngineFailed),
    ],
)
def test_what_spark_says_decides_whether_another_attempt_is_made(server: HiveServer, link: ThriftLink, said: str, kind: type):
    """The names in the frames of a stack trace do not count."""
    server.answers["SELECT x"] = STACK.format(said)

    with pytest.raises(EngineFailed if kind is EngineFailed else kind) as caught:
        look(link, "SELECT x")

    assert type(caught.value) is kind
    assert str(caught.value).rstrip() == f"spark: Error running query: {said}"


def test_a_server_that_cannot_be_reached_is_not_one_without_work(server: HiveServer, link: ThriftLink):
    gone = ThriftLink(ThriftOptions("thrift://127.0.0.1:1", sasl=False))

    with pytest.raises(EngineFailed, match="cannot be reached"):
        gone.find("00.00")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "http://spark:10000"}, "use thrift://host:10000 or thrifts://"),
        ({"url": "thrift://spark/path"}, "use thrift://host:10000 or thrifts://"),
        ({"url": "thrift://me:secret@spark:10000"}, "use HOLDFAST_SPARK_THRIFT_USER and HOLDFAST_SPARK_THRIFT_PASSWORD"),
        ({"url": "thrift://spark:10000", "password": "x"}, "use thrifts://spark:10000"),
        ({"url": "thrift://127.0.0.1", "password": "x", "sasl": False}, "a password needs SASL"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, object], said: str):
    with pytest.raises(UsageError, match=said):
        ThriftOptions(**given)  # type: ignore[arg-type]


def test_a_password_is_sent_over_tls_or_to_this_machine():
    assert ThriftOptions("thrifts://spark:10000", password="x").tls
    assert "secret" not in repr(ThriftOptions("thrift://127.0.0.1:10000", password="secret"))
