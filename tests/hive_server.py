"""A server in this process that speaks the protocol of HiveServer2: sessions, operations and their ends, without a JVM.

A statement's answer is what `answers` has for it. A statement in `held` runs until it is cancelled or its session is closed.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from impala._thrift_gen.TCLIService import TCLIService
from impala._thrift_gen.TCLIService import ttypes as t
from thrift.protocol.TBinaryProtocol import TBinaryProtocolFactory
from thrift.transport.TSocket import TServerSocket
from thrift.transport.TTransport import TBufferedTransportFactory

OK = t.TStatus(statusCode=t.TStatusCode.SUCCESS_STATUS)
DONE, RUNNING, FAILED = t.TOperationState.FINISHED_STATE, t.TOperationState.RUNNING_STATE, t.TOperationState.ERROR_STATE
CANCELED = t.TOperationState.CANCELED_STATE


@dataclass
class Operation:
    session: bytes
    state: int = DONE
    answer: list[Any] = field(default_factory=list)  # columns
    error: str | None = None


@dataclass
class HiveServer:
    """What the server knows. Its methods are the requests of the protocol."""

    answers: dict[str, list[Any] | str] = field(default_factory=dict)  # columns, or the text of an error
    held: set[str] = field(default_factory=set)
    statements: list[str] = field(default_factory=list)
    sessions: dict[bytes, str] = field(default_factory=dict)
    operations: dict[bytes, Operation] = field(default_factory=dict)
    began: threading.Event = field(default_factory=threading.Event)
    cancels: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    def OpenSession(self, req: Any) -> Any:  # noqa: N802
        guid = uuid.uuid4().bytes
        self.sessions[guid] = req.configuration["kyuubi.session.name"]
        return t.TOpenSessionResp(status=OK, serverProtocolVersion=5, sessionHandle=_session(guid))

    def CloseSession(self, req: Any) -> Any:  # noqa: N802
        guid = req.sessionHandle.sessionId.guid
        if self.sessions.pop(guid, None) is None:
            return t.TCloseSessionResp(status=_refusal("Session does not exist!"))
        for one in self.operations.values():
            one.state = CANCELED if one.session == guid and one.state == RUNNING else one.state
        return t.TCloseSessionResp(status=OK)

    def ExecuteStatement(self, req: Any) -> Any:  # noqa: N802
        assert req.runAsync
        self.statements.append(req.statement)
        sql = req.statement.rpartition("*/ ")[2]
        answer = self.answers.get(sql, [])
        made = Operation(req.sessionHandle.sessionId.guid)
        if sql in self.held:
            made.state = RUNNING
        elif isinstance(answer, str):
            made.state, made.error = FAILED, answer
        else:
            made.answer = answer
        found = t.TExecuteStatementResp(**self._started(req, made))
        self.began.set()
        return found

    def _started(self, req: Any, made: Operation) -> dict[str, Any]:
        if made.session not in self.sessions:
            return {"status": _refusal(f"Invalid SessionHandle: SessionHandle [{uuid.UUID(bytes=made.session)}]")}
        guid = uuid.uuid4().bytes
        self.operations[guid] = made
        identifier = t.THandleIdentifier(guid=guid, secret=b"s")
        kind = t.TOperationType.EXECUTE_STATEMENT
        return {"status": OK, "operationHandle": t.TOperationHandle(identifier, kind, hasResultSet=True)}

    def GetOperationStatus(self, req: Any) -> Any:  # noqa: N802
        one = self.operations.get(req.operationHandle.operationId.guid)
        if one is None:
            return t.TGetOperationStatusResp(status=_refusal("Invalid OperationHandle"))
        return t.TGetOperationStatusResp(status=OK, operationState=one.state, errorMessage=one.error)

    def CancelOperation(self, req: Any) -> Any:  # noqa: N802
        self.operations[req.operationHandle.operationId.guid].state = CANCELED
        self.cancels += 1
        return t.TCancelOperationResp(status=OK)

    def CloseOperation(self, req: Any) -> Any:  # noqa: N802
        self.operations.pop(req.operationHandle.operationId.guid, None)
        return t.TCloseOperationResp(status=OK)

    def FetchResults(self, req: Any) -> Any:  # noqa: N802
        one = self.operations[req.operationHandle.operationId.guid]
        columns, one.answer = one.answer, []
        return t.TFetchResultsResp(status=OK, hasMoreRows=False, results=t.TRowSet(0, [], columns or None))


def numbers(*values: int | None) -> Any:
    """A column of numbers. A null has a value, too: only its bit says that it is one."""
    return t.TColumn(i64Val=t.TI64Column([value or 0 for value in values], _bits(values)))


def texts(*values: str | None) -> Any:
    """A column of texts."""
    return t.TColumn(stringVal=t.TStringColumn([(value or "").encode() for value in values], _bits(values)))


def _bits(values: tuple[Any, ...]) -> bytes:
    return sum(1 << number for number, value in enumerate(values) if value is None).to_bytes(len(values) // 8 + 1, "little")


def _session(guid: bytes) -> Any:
    return t.TSessionHandle(sessionId=t.THandleIdentifier(guid=guid, secret=b"secret"))


def _refusal(said: str) -> Any:
    return t.TStatus(statusCode=t.TStatusCode.ERROR_STATUS, errorMessage=said)


def shut(end: Any) -> None:
    """Close a socket, so that a thread that waits at it goes on."""
    if end.handle is not None:
        with suppress(OSError):
            end.handle.shutdown(socket.SHUT_RDWR)
    end.close()


@contextmanager
def hive_server() -> Iterator[HiveServer]:
    """A server on the loopback, with a thread for each connection. It has no SASL."""
    known, clients, threads = HiveServer(), [], []
    listening = TServerSocket("127.0.0.1", 0)
    listening.listen()
    known.port = listening.handle.getsockname()[1]
    processor = TCLIService.Processor(known)

    def serve(client: Any) -> None:
        protocol = TBinaryProtocolFactory().getProtocol(TBufferedTransportFactory().getTransport(client))
        try:
            while True:
                processor.process(protocol, protocol)
        except Exception:  # the client has closed the connection
            client.close()

    def accept() -> None:
        while True:
            try:
                clients.append(client := listening.accept())
            except Exception:  # the server is closed
                return
            threads.append(thread := threading.Thread(target=serve, args=[client]))
            thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield known
    finally:
        shut(listening)
        accepting.join()
        for client in clients:
            shut(client)
        for thread in threads:
            thread.join()
