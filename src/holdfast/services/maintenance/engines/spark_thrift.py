"""Run SQL on a Spark Thrift Server or Kyuubi, over the protocol of HiveServer2. Called by: the engine spark.

An attempt has a session of its own, which is opened before its first statement (`begin`). The server chooses the handles of
sessions and operations, so the attempt's handle is recorded in the effects ledger: another process closes the session with it,
which cancels what runs there and refuses what an attempt sends later. The handle has the session's secret: no page, response
or log line shows it, and the database role of readers cannot read it. The statement's text begins with the attempt's tag, for
people who look at the server.

What differs from Spark Connect: a closed session is gone at once, and the protocol has no way to wait for the thread of its
statement. A commit that has begun may still come through; then Iceberg's validation refuses one of the two commits. When the
client's connection ends, the server closes its session.

The protocol's messages come from `impyla`, which is imported when it is used.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from holdfast.addresses import is_loopback
from holdfast.errors import UsageError
from holdfast.extras import loaded
from holdfast.services.maintenance.engines.interface import TAG_PREFIX, EngineFailed
from holdfast.services.maintenance.engines.spark_errors import error_saying
from holdfast.services.maintenance.engines.sql_engine import Rows, Stopped

EXTRA: Final = "spark-thrift"
PORT: Final = 10000
LOOK_SECONDS: Final = 0.2  # between two looks at a statement and at a cancel
ANSWER_SECONDS: Final = 60.0  # for each request: none of them waits for a statement
NOTHING: Final = "SELECT 1"
MOST_ROWS: Final = 10_000  # of one answer
# Of sessions that the server does not have, in the texts of its errors.
UNKNOWN: Final = ("Invalid SessionHandle", "Session does not exist")
VALUES: Final = ("i64Val", "stringVal", "i32Val", "boolVal", "doubleVal", "byteVal", "i16Val", "binaryVal")


@dataclass(frozen=True, slots=True)
class ThriftOptions:
    """A server at `thrift://host:10000`, or `thrifts://…` with TLS. The password is not in its repr."""

    url: str
    user: str = "holdfast"
    password: str | None = field(default=None, repr=False)
    sasl: bool = True
    ca_file: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("thrift", "thrifts") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise UsageError(
                f"{self.url!r} is not an address of a Spark Thrift Server; use thrift://host:{PORT} or thrifts://…"
            )
        if "@" in parts.netloc:
            raise UsageError(
                "the address of the Spark Thrift Server has a user or password; "
                "use HOLDFAST_SPARK_THRIFT_USER and HOLDFAST_SPARK_THRIFT_PASSWORD"
            )
        if self.password and not self.sasl:
            raise UsageError(
                "a password needs SASL; unset HOLDFAST_SPARK_THRIFT_PASSWORD, or set HOLDFAST_SPARK_THRIFT_SASL=true"
            )
        if self.password and not self.tls and not is_loopback(parts.hostname):
            raise UsageError(f"the password is not sent to {self.url} in the clear; use thrifts://{parts.netloc}")

    @property
    def tls(self) -> bool:
        return self.url.startswith("thrifts://")

    def connect(self) -> Any:
        """A new connection. Blocks."""
        parts = urlsplit(self.url)
        return loaded("impala.hiveserver2", extra=EXTRA).connect(
            parts.hostname,
            parts.port or PORT,
            timeout=ANSWER_SECONDS,
            use_ssl=self.tls,
            verify_cert=True,
            ca_cert=self.ca_file,
            user=self.user,
            password=self.password or "none",  # SASL PLAIN needs one; a server without authentication ignores it
            auth_mechanism="PLAIN" if self.sasl else "NOSASL",
            retries=1,
        )


@dataclass(slots=True)
class ThriftLink:
    """A Spark Thrift Server. Statements of an attempt run in the attempt's session, others in sessions that are reused."""

    options: ThriftOptions
    _attempts: dict[str, _Session] = field(default_factory=dict)
    _idle: list[_Session] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, tag: str) -> str:
        """Open the session of an attempt. Returns the handle by which any process finds it."""
        session = _Session.open(self.options, tag)
        with self._lock:
            earlier, self._attempts[tag] = self._attempts.get(tag), session
        if earlier is not None:
            earlier.close()
        return session.handle

    def end(self, tag: str) -> None:
        """Close the session of an attempt of this process; what runs in it is cancelled."""
        with self._lock:
            session = self._attempts.pop(tag, None)
        if session is not None:
            session.close()

    def run(self, sql: str, tag: str, work: str, cancelled: Callable[[], bool]) -> Rows:
        """The rows of a statement; `Stopped` if it was cancelled. `work` names the statement within its attempt."""
        with self._lock:
            session = self._attempts.get(tag)
        if session is not None:
            return session.run(f"/* {tag} {work} */ {sql}", cancelled)
        if tag.startswith(TAG_PREFIX) and work:
            raise EngineFailed(f"spark: the session of {tag} has ended")
        return self._read(sql, cancelled)

    def _read(self, sql: str, cancelled: Callable[[], bool]) -> Rows:
        """Run a statement of no attempt. It only reads, so it is sent again if an idle session turns out to have ended."""
        while True:
            with self._lock:
                session = self._idle.pop() if self._idle else None
            known = session is not None
            session = session or _Session.open(self.options, "holdfast")
            try:
                rows = session.run(sql, cancelled)
            except _SessionLost:
                session.close()
                if not known:
                    raise
            except BaseException:
                session.close()
                raise
            else:
                with self._lock:
                    self._idle.append(session)
                return rows

    def find(self, handle: str) -> str | None:
        """The handle, if the server has this session; None: it certainly has not."""
        identifier = _identifier(handle)
        if identifier is None:
            return None  # an attempt that had recorded no session has sent no statement
        with _Connection.to(self.options) as connection:
            return handle if connection.has(identifier) else None

    def stop(self, handle: str) -> None:
        """Close the session with this handle: what runs in it is cancelled, and nothing more is accepted there."""
        identifier = _identifier(handle)
        if identifier is None:
            return
        with _Connection.to(self.options) as connection:
            connection.close_session(identifier)

    def close(self) -> None:
        """Close all sessions."""
        with self._lock:
            sessions, self._idle, self._attempts = [*self._idle, *self._attempts.values()], [], {}
        for session in sessions:
            session.close()


class _SessionLost(EngineFailed):
    """The connection or the session has ended."""


@dataclass(slots=True)
class _Connection:
    """One connection. Its requests take turns; each is answered at once."""

    service: Any
    messages: Any
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def to(cls, options: ThriftOptions) -> _Connection:
        messages = loaded("impala._thrift_gen.TCLIService.ttypes", extra=EXTRA)
        try:
            return cls(options.connect(), messages)
        except Exception as error:
            raise EngineFailed(f"spark: {options.url} cannot be reached: {error}") from error

    def ask(self, name: str, **fields: Any) -> Any:
        """The answer to a request, whatever its status. `_SessionLost` if there is none."""
        request = getattr(self.messages, f"T{name}Req")(**fields)
        try:
            with self.lock:
                return getattr(self.service.client, name)(request)
        except Exception as error:
            raise _SessionLost(f"spark: {name} was not answered: {type(error).__name__}: {error}") from error

    def answer(self, name: str, **fields: Any) -> Any:
        """The answer to a request; what the server refuses is raised."""
        found = self.ask(name, **fields)
        if found.status.statusCode not in (
            self.messages.TStatusCode.SUCCESS_STATUS,
            self.messages.TStatusCode.SUCCESS_WITH_INFO_STATUS,
        ):
            said = _said(found.status)
            raise _SessionLost(f"spark: {said}") if _is_unknown(said) else error_saying(said, said)
        return found

    def has(self, identifier: tuple[bytes, bytes]) -> bool:
        """Whether the server has this session: a statement that does nothing is accepted there and not waited for. Spark
        answers `GetInfo` for any handle, and other requests need Hive's metastore."""
        found = self.ask("ExecuteStatement", sessionHandle=self.session(identifier), statement=NOTHING, runAsync=True)
        if found.status.statusCode == self.messages.TStatusCode.ERROR_STATUS:
            if _is_unknown(said := _said(found.status)):
                return False
            raise EngineFailed(f"spark: {said}")
        self.ask("CloseOperation", operationHandle=found.operationHandle)
        return True

    def close_session(self, identifier: tuple[bytes, bytes]) -> None:
        """Close a session. No error if it has ended."""
        found = self.ask("CloseSession", sessionHandle=self.session(identifier))
        if found.status.statusCode == self.messages.TStatusCode.ERROR_STATUS and not _is_unknown(_said(found.status)):
            raise EngineFailed(f"spark: {_said(found.status)}")

    def session(self, identifier: tuple[bytes, bytes]) -> Any:
        guid, secret = identifier
        return self.messages.TSessionHandle(sessionId=self.messages.THandleIdentifier(guid=guid, secret=secret))

    def close(self) -> None:
        with contextlib.suppress(Exception), self.lock:
            self.service.close()

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(slots=True)
class _Session:
    """A session, in a connection of its own."""

    connection: _Connection
    identifier: tuple[bytes, bytes] = field(repr=False)  # has the session's secret

    @classmethod
    def open(cls, options: ThriftOptions, name: str) -> _Session:
        """Open a session. Kyuubi shows its name; Spark ignores it."""
        connection = _Connection.to(options)
        try:
            opened = connection.answer(
                "OpenSession",
                client_protocol=connection.messages.TProtocolVersion.HIVE_CLI_SERVICE_PROTOCOL_V6,
                username=options.user,
                configuration={"kyuubi.session.name": name},
            )
        except BaseException:
            connection.close()
            raise
        found = opened.sessionHandle.sessionId
        return cls(connection, (found.guid, found.secret))

    @property
    def handle(self) -> str:
        guid, secret = self.identifier
        return f"{guid.hex()}.{secret.hex()}"

    def run(self, sql: str, cancelled: Callable[[], bool]) -> Rows:
        """Send the statement, wait for its end, and read its rows."""
        ask = self.connection.answer
        session = self.connection.session(self.identifier)
        operation = ask("ExecuteStatement", sessionHandle=session, statement=sql, runAsync=True).operationHandle
        try:
            self._wait(operation, cancelled)
            return self._rows(operation) if operation.hasResultSet else []
        finally:
            with contextlib.suppress(EngineFailed):
                self.connection.ask("CloseOperation", operationHandle=operation)

    def _wait(self, operation: Any, cancelled: Callable[[], bool]) -> None:
        states = self.connection.messages.TOperationState
        live = (states.INITIALIZED_STATE, states.PENDING_STATE, states.RUNNING_STATE)
        while (found := self.connection.answer("GetOperationStatus", operationHandle=operation)).operationState in live:
            if cancelled():
                self.connection.answer("CancelOperation", operationHandle=operation)
                raise Stopped
            time.sleep(LOOK_SECONDS)
        if found.operationState != states.FINISHED_STATE:
            state = states._VALUES_TO_NAMES.get(found.operationState, found.operationState)
            said = found.errorMessage or f"the statement ended as {state}; somebody cancelled it or closed its session"
            everything = "\n".join(one for one in said.splitlines() if not one.startswith("\tat "))
            raise error_saying(everything.partition("HiveSQLException: ")[2] or everything, everything)

    def _rows(self, operation: Any) -> Rows:
        rows: Rows = []
        while True:  # `hasMoreRows` is false in all answers of Spark
            found = self.connection.answer("FetchResults", operationHandle=operation, orientation=0, maxRows=MOST_ROWS)
            batch = list(zip(*map(_values, found.results.columns or ()), strict=True))
            if not batch:
                return rows
            rows += batch

    def close(self) -> None:
        """Close the session and its connection. If the server cannot be told, it ends the session with the connection."""
        with contextlib.suppress(EngineFailed):
            self.connection.close_session(self.identifier)
        self.connection.close()


def _values(column: Any) -> list[Any]:
    """The values of a column; `nulls` has a bit for each."""
    found = next(one for one in (getattr(column, name) for name in VALUES) if one is not None)
    nulls = int.from_bytes(found.nulls, "little")
    return [
        None if nulls >> number & 1 else value.decode(errors="replace") if isinstance(value, bytes) else value
        for number, value in enumerate(found.values)
    ]


def _identifier(handle: str) -> tuple[bytes, bytes] | None:
    """The session of a handle; None if it is the tag of an attempt that has recorded no session. Pure."""
    guid, _, secret = handle.partition(".")
    try:
        return (bytes.fromhex(guid), bytes.fromhex(secret)) if guid and secret else None
    except ValueError:
        return None


def _said(status: Any) -> str:
    return str(status.errorMessage or (status.infoMessages or ["no message"])[0])


def _is_unknown(said: str) -> bool:
    return any(word in said for word in UNKNOWN)
