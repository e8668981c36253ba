"""Run SQL over Spark Connect, so that any process can find and stop it. Called by: the engine spark.

Every statement of an attempt has an operation id that follows from the attempt and the action, in a session with the
attempt's id. So another process can ask the server for exactly this operation, interrupt it, and wait until it has ended. The
protocol's messages come from `pyspark-client`, which is imported when it is used.

An operation goes on when its client has died: the server keeps it for some minutes, so that a client can attach to it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final
from uuid import UUID, uuid4, uuid5

from holdfast.errors import UsageError
from holdfast.extras import loaded
from holdfast.services.maintenance.engines.actions import ACTIONS
from holdfast.services.maintenance.engines.interface import (
    TAG_PREFIX,
    EngineFailed,
    MaintenanceError,
)
from holdfast.services.maintenance.engines.spark_errors import LONGEST, error_saying
from holdfast.services.maintenance.engines.sql_engine import FOLLOW_UPS, Rows, Stopped

USER: Final = "holdfast"  # sessions belong to a user; every process must use the same one
CLIENT: Final = "holdfast"
LOOK_SECONDS: Final = 0.2  # between two looks at a cancel
ANSWER_SECONDS: Final = 60.0  # for requests that the server answers at once
STOP_SECONDS: Final = 60.0  # until an interrupted operation must have ended
LOST_SECONDS: Final = 60.0  # for which a lost connection is tried again
# Of sessions and operations that the server does not have, in the texts of its errors.
UNKNOWN: Final = ("OPERATION_NOT_FOUND", "OPERATION_ABANDONED", "SESSION_NOT_FOUND", "SESSION_CLOSED")
NOT_THE_LAST: Final = ("INVALID_CURSOR",)  # somebody else reads the operation, so it exists


@dataclass(frozen=True, slots=True)
class Operation:
    """The place of one statement on the server."""

    session: str
    id: str

    @classmethod
    def of(cls, tag: str, work: str) -> Operation:
        """The operation of an attempt's action. Pure."""
        attempt = UUID(tag.removeprefix(TAG_PREFIX))
        return cls(str(attempt), str(uuid5(attempt, work)))


def is_attempt(tag: str) -> bool:
    """Whether a tag is that of an attempt. Pure."""
    try:
        UUID(tag.removeprefix(TAG_PREFIX))
    except ValueError:
        return False
    return tag.startswith(TAG_PREFIX)


@dataclass(slots=True)
class ConnectLink:
    """A Spark Connect server at an address `sc://host:port`, also with parameters: `sc://host:port/;token=…`."""

    url: str
    _own: str = field(default_factory=lambda: str(uuid4()))  # the session of statements that only read
    _opened: tuple[Any, Any, Any] | None = None  # messages, stub, metadata
    _channel: Any = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if not self.url.startswith("sc://"):
            raise UsageError(f"{self.url!r} is not an address of Spark Connect; use sc://host:port")

    def run(self, sql: str, tag: str, work: str, cancelled: Callable[[], bool]) -> Rows:
        """The rows of a statement; `Stopped` if it was cancelled. `work` names the statement within its attempt."""
        operation = Operation.of(tag, work) if is_attempt(tag) else Operation(self._own, str(uuid4()))
        reading = _Reading(self, operation, sql, tag)
        thread = threading.Thread(target=reading.read, name=f"spark {tag}", daemon=True)
        thread.start()
        stopping = False
        while thread.is_alive():
            thread.join(LOOK_SECONDS)
            if thread.is_alive() and not stopping and cancelled():
                stopping = True
                self._interrupt(operation)
        if stopping and reading.failure is not None:
            raise Stopped
        if reading.failure is not None:
            raise reading.failure
        return reading.rows

    def begin(self, tag: str) -> str:
        """The tag: sessions and operations have ids that follow from it."""
        return tag

    def end(self, tag: str) -> None:
        """Nothing to end: operations are released when they have ended, and the server ends idle sessions."""

    def find(self, tag: str) -> str | None:
        """The tag, if the server has an operation of this attempt; None: it certainly has none."""
        return tag if any(self._exists(operation) for operation in _operations(tag)) else None

    def stop(self, tag: str) -> None:
        """Interrupt the operations of an attempt, and return when they have ended. The session ends as well."""
        for operation in _operations(tag):
            if self._exists(operation):
                self._interrupt(operation)
                self._wait(operation)
                self.release(operation)
        self._release_session(tag)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = self._opened = None

    # ------------------------------------------------------------------------------------------------ one operation

    def _exists(self, operation: Operation) -> bool:
        try:
            next(iter(self._attached(operation, within=1.0)), None)
        except Exception as error:
            if _has(error, UNKNOWN):
                return False
            if _has(error, ("DEADLINE_EXCEEDED", *NOT_THE_LAST, "OPERATION_CANCELED")) or _is_final(error):
                return True
            raise EngineFailed(f"spark: {_said(error)}") from error
        return True

    def _interrupt(self, operation: Operation) -> None:
        messages, stub, metadata = self.opened()
        kind = messages.InterruptRequest.InterruptType.INTERRUPT_TYPE_OPERATION_ID
        request = messages.InterruptRequest(**self.about(operation), interrupt_type=kind)
        try:
            stub.Interrupt(request, metadata=metadata, timeout=ANSWER_SECONDS)
        except Exception as error:
            if not _has(error, UNKNOWN):
                raise EngineFailed(f"spark: {_said(error)}") from error

    def _wait(self, operation: Operation) -> None:
        """Read what is left of an operation: its end is the end of its thread on the server."""
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            try:
                for answer in self._attached(operation, within=max(1.0, deadline - time.monotonic())):
                    if answer.HasField("result_complete"):
                        return
            except Exception as error:
                if _has(error, UNKNOWN) or _is_final(error):
                    return
            time.sleep(LOOK_SECONDS)
        raise EngineFailed(f"spark did not stop the operation {operation.id} within {STOP_SECONDS:.0f} s")

    def release(self, operation: Operation) -> None:
        """Tell the server to forget an operation that has ended. If it cannot be told, it forgets it after some minutes."""
        try:
            messages, stub, metadata = self.opened()
            everything = messages.ReleaseExecuteRequest.ReleaseAll()
            request = messages.ReleaseExecuteRequest(**self.about(operation), release_all=everything)
            stub.ReleaseExecute(request, metadata=metadata, timeout=ANSWER_SECONDS)
        except Exception:  # the operation has ended
            return

    def _attached(self, operation: Operation, *, within: float) -> Iterator[Any]:
        messages, stub, metadata = self.opened()
        request = messages.ReattachExecuteRequest(**self.about(operation))
        answers: Iterator[Any] = stub.ReattachExecute(request, metadata=metadata, timeout=within)
        return answers

    def _release_session(self, tag: str) -> None:
        """End the session: from Spark 4, the server then refuses statements of this attempt that come later."""
        messages, stub, metadata = self.opened()
        if not hasattr(messages, "ReleaseSessionRequest"):
            return
        session = Operation.of(tag, "").session
        request = messages.ReleaseSessionRequest(session_id=session, user_context=messages.UserContext(user_id=self._user))
        try:
            stub.ReleaseSession(request, metadata=metadata, timeout=ANSWER_SECONDS)
        except Exception as error:
            if not _has(error, ("UNIMPLEMENTED", *UNKNOWN)):
                raise EngineFailed(f"spark: {_said(error)}") from error

    # ------------------------------------------------------------------------------------------------ the connection

    def about(self, operation: Operation) -> dict[str, Any]:
        """What every request has."""
        messages, _, _ = self.opened()
        return {
            "session_id": operation.session,
            "user_context": messages.UserContext(user_id=self._user),
            "operation_id": operation.id,
            "client_type": CLIENT,
        }

    def opened(self) -> tuple[Any, Any, Any]:
        """The messages of the protocol, the stub and the metadata of its requests."""
        with self._lock:
            if self._opened is None:
                try:
                    messages = loaded("pyspark.sql.connect.proto")
                    core = loaded("pyspark.sql.connect.client.core")
                except ModuleNotFoundError as missing:
                    raise UsageError(f"{missing.name} is not installed; install it with: pip install pyspark-client") from None
                builder = getattr(core, "DefaultChannelBuilder", core.ChannelBuilder)(self.url)
                self._channel = builder.toChannel()
                self._opened = (messages, messages.SparkConnectServiceStub(self._channel), builder.metadata())
            return self._opened

    @property
    def _user(self) -> str:
        parameters = dict(part.partition("=")[::2] for part in self.url.partition("/;")[2].split(";"))
        return parameters.get("user_id") or USER


@dataclass(slots=True)
class _Reading:
    """One statement that is being read, in a thread of its own."""

    link: ConnectLink
    operation: Operation
    sql: str
    tag: str
    rows: Rows = field(default_factory=list)
    failure: MaintenanceError | None = None

    def read(self) -> None:
        """Send the statement and read its rows. The end is in `rows` or in `failure`."""
        try:
            self._read()
        except EngineFailed as failed:
            self.failure = failed
        except Exception as error:
            self.failure = error_of(error)
            if not _is_final(error):  # it may still run, so that another process must be able to find it
                return
        self.link.release(self.operation)

    def _read(self) -> None:
        messages, stub, metadata = self.link.opened()
        options = messages.ExecutePlanRequest.RequestOption(reattach_options=messages.ReattachOptions(reattachable=True))
        plan = messages.Plan(root=messages.Relation(sql=messages.SQL(query=self.sql)))
        about = self.link.about(self.operation)
        answers = stub.ExecutePlan(
            messages.ExecutePlanRequest(**about, plan=plan, tags=[self.tag], request_options=[options]), metadata=metadata
        )
        last: str | None = None
        lost_at: float | None = None
        while True:  # the server ends a stream after some minutes, and a connection may be lost: then attach again
            try:
                for answer in answers:
                    last, lost_at = answer.response_id, None
                    if answer.HasField("result_complete"):
                        return
                    if answer.HasField("arrow_batch"):
                        self.rows += _rows_of(answer.arrow_batch.data)
            except Exception as error:
                lost_at = lost_at or time.monotonic()
                if not _has(error, ("UNAVAILABLE",)) or time.monotonic() - lost_at > LOST_SECONDS:
                    raise
                time.sleep(LOOK_SECONDS)
            request = messages.ReattachExecuteRequest(**about, **({"last_response_id": last} if last else {}))
            answers = stub.ReattachExecute(request, metadata=metadata)


def _operations(tag: str) -> list[Operation]:
    return [Operation.of(tag, work) for work in (*ACTIONS, *FOLLOW_UPS)] if is_attempt(tag) else []


def _rows_of(data: bytes) -> Rows:
    """The rows of one answer, which is an Arrow stream."""
    ipc = loaded("pyarrow.ipc", extra="maintenance")
    table = ipc.open_stream(BytesIO(data)).read_all()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _said(error: Exception) -> str:
    """The message of an error of gRPC; of others, its text."""
    details = getattr(error, "details", None)
    return str((details() if callable(details) else None) or error)[:LONGEST]


def _classes(error: Exception) -> str:
    """The class of the exception on the server and those that it extends, which its message does not name."""
    trailing = getattr(error, "trailing_metadata", None)
    packed = dict(trailing() or ()).get("grpc-status-details-bin") if callable(trailing) else None
    if packed is None:
        return ""
    status = loaded("google.rpc.status_pb2").Status.FromString(packed)
    info = loaded("google.rpc.error_details_pb2").ErrorInfo()
    return " ".join(f"{info.reason} {info.metadata.get('classes', '')}" for one in status.details if one.Unpack(info))


def _has(error: Exception, words: tuple[str, ...]) -> bool:
    """Whether the server's error has one of these words, in its code, its message or its classes."""
    return any(word in _everything(error) for word in words)


def _everything(error: Exception) -> str:
    code = getattr(error, "code", None)
    return f"{getattr(code(), 'name', '') if callable(code) else ''} {_said(error)} {_classes(error)}"


def error_of(error: Exception) -> MaintenanceError:
    """The error of a statement: what the server said, and whether another attempt may succeed."""
    return error_saying(_said(error), _everything(error))


def _is_final(error: Exception) -> bool:
    """Whether the error is how the operation ended, and not a failure to reach it."""
    return not _has(error, ("UNAVAILABLE", "DEADLINE_EXCEEDED", *NOT_THE_LAST))
