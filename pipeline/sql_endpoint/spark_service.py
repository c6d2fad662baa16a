"""Runs requests of HiveServer2's protocol in Spark's JVM, without a port.

Spark's Thrift service is a class with a method for each request; its server only adds the socket. The endpoint calls
the class through py4j, so that no other process of the machine can reach Spark past the checks of the endpoint, as it
could on a port of loopback. Requests and responses go through two named pipes for each connection: py4j would encode
the bytes as text and wait 40 ms for TCP's delayed acknowledgement in each response.

    pipe    length (4 bytes, big-endian), one Thrift message, in both directions
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import struct
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from headrace.hive_ddl.executors.jvm_errors import one_line
from headrace.pipeline.sql import error_line
from headrace.pipeline.sql_endpoint.sessions import HandleKey
from headrace.pipeline.sql_endpoint.statements import JavaValue, PlanPart, is_leaf
from headrace.pipeline.sql_endpoint.wire import RESPONSE_BYTES_MAX, frame

POLL_MS: Final = 200
READ_BYTES_MAX: Final = 1024 * 1024
VALUES_MAX: Final = 20_000  # values of a parsed statement that are read; about two seconds


class StatementInvalid(Exception):
    """Spark cannot parse a statement, or it is too large to check; the message is one line."""


class JvmCallFailed(Exception):
    """A call into the JVM failed; the message is one line. If the JVM has ended the caller finds out from its
    process."""


class SparkService:
    """Spark's Thrift service in the JVM of a Spark session. Thread-safe."""

    def __init__(self, session: Any) -> None:
        jvm = session._jvm
        context = session.sparkContext._jsc.sc()
        hive = jvm.org.apache.spark.sql.hive
        server = hive.thriftserver
        java_session = session._jsparkSession
        # As HiveThriftServer2.startWithSparkSession does, without the socket and the web page.
        utilities = getattr(getattr(hive, "HiveUtils$"), "MODULE$")
        client = utilities.newClientForExecution(context.conf(), java_session.sessionState().newHadoopConf())
        getattr(server.HiveThriftServer2, "eventManager_$eq")(server.ui.HiveThriftServer2EventManager(context))
        service = server.SparkSQLCLIService(server.HiveThriftServer2(java_session), java_session)
        service.init(client.conf())
        service.start()
        thrift = jvm.org.apache.hive.service.cli.thrift.ThriftBinaryCLIService(service)
        thrift.init(client.conf())
        self._processor = getattr(jvm.org.apache.hive.service.rpc.thrift, "TCLIService$Processor")(thrift)
        self._jvm = jvm
        self._context = context
        self._parser = java_session.sessionState().sqlParser()

    @contextlib.contextmanager
    def channel(self) -> Iterator[JvmChannel]:
        """Yields a channel for the requests of one connection.

        Raises:
            JvmCallFailed: the JVM has ended.
        """
        try:
            channel = JvmChannel(self._jvm, self._processor)
        except (Py4JError, OSError) as error:
            raise JvmCallFailed(_reason(error)) from error
        try:
            yield channel
        finally:
            channel.close()

    def cancel_jobs(self, operations: Iterable[HandleKey]) -> None:
        """Cancels the jobs of operations. Spark also rejects their later jobs, except for a job that writes the shuffle
        of an adaptive query.

        Raises:
            JvmCallFailed: the JVM has ended.
        """
        try:
            for guid, _ in operations:
                # Spark's operations use the UUID of their handle as the job group.
                self._context.cancelJobGroupAndFutureJobs(str(uuid.UUID(bytes=guid)))
        except Exception as error:  # py4j raises various errors when its JVM has ended
            raise JvmCallFailed(_reason(error)) from error

    def parse(self, statement: str) -> PlanPart:
        """Parses a statement with Spark's parser and returns its plan, without the content of leaves.

        Raises:
            StatementInvalid: it cannot be parsed, or it has too many parts.
            JvmCallFailed: the call failed.
        """
        try:
            plan = self._parser.parsePlan(statement)
        except (PySparkException, Py4JJavaError) as error:
            raise StatementInvalid(error_line(error)) from error
        except (Py4JError, OSError) as error:
            raise JvmCallFailed(_reason(error)) from error
        try:
            return _PlanReader().read(plan)
        except RecursionError as error:
            raise StatementInvalid("the statement is nested too deeply to check; split it") from error
        except (Py4JError, OSError) as error:
            raise JvmCallFailed(_reason(error)) from error


class JvmChannel:
    """Sends requests to Spark's Thrift service one after another. Only one thread may use it."""

    def __init__(self, jvm: Any, processor: Any) -> None:
        self._processor = processor
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._requests, self._responses, streams = _open_pipes(jvm)
        thrift = jvm.org.apache.thrift
        self._transport = thrift.transport.layered.TFramedTransport(
            thrift.transport.TIOStreamTransport(*streams), RESPONSE_BYTES_MAX
        )
        self._protocol = thrift.protocol.TBinaryProtocol(self._transport)
        threading.Thread(target=self._call, name="sql-jvm", daemon=True).start()

    def process(self, message: bytes) -> bytes:
        """Runs a request and returns the response.

        Raises:
            JvmCallFailed: the call failed, for example because the JVM has ended. The channel cannot be used again.
        """
        self._calls.put(True)
        try:
            _write_all(self._requests, frame(message))
            _write_all(self._requests, message)
            (length,) = struct.unpack(">I", self._read(4))
            response = self._read(length)
        except OSError as error:
            raise JvmCallFailed("Spark's JVM has ended") from error
        failure = self._results.get()
        if failure is not None:
            raise JvmCallFailed(_reason(failure)) from failure
        return response

    def _call(self) -> None:
        """Runs the calls into the JVM, each of which reads a request from the pipe and writes the response."""
        while self._calls.get():
            try:
                self._processor.process(self._protocol, self._protocol)
                self._results.put(None)
            except Exception as error:  # py4j raises various errors when its JVM has ended
                self._results.put(error)
        with contextlib.suppress(Exception):
            self._transport.close()

    def _read(self, count: int) -> bytes:
        poll = select.poll()
        poll.register(self._responses, select.POLLIN)
        chunks = []
        while count:
            if not poll.poll(POLL_MS):
                self._raise_if_failed()
                continue
            chunk = os.read(self._responses, min(count, READ_BYTES_MAX))
            if not chunk:
                raise BrokenPipeError
            chunks.append(chunk)
            count -= len(chunk)
        return b"".join(chunks)

    def _raise_if_failed(self) -> None:
        """Raises the error of a call that has ended without a response."""
        with contextlib.suppress(queue.Empty):
            failure = self._results.get_nowait()
            if failure is None and select.select([self._responses], [], [], 0)[0]:
                self._results.put(None)  # the response has come meanwhile
                return
            raise JvmCallFailed("Spark sent no response" if failure is None else _reason(failure)) from failure

    def close(self) -> None:
        self._calls.put(False)
        os.close(self._requests)
        os.close(self._responses)


def _open_pipes(jvm: Any) -> tuple[int, int, tuple[Any, Any]]:
    """Returns the descriptors for requests and responses, and the JVM's streams of both. Only the user of this process
    can open the pipes, and their names are deleted once they are open."""
    with tempfile.TemporaryDirectory(prefix="headrace-sql-") as directory, contextlib.ExitStack() as undo:
        requests, responses = (Path(directory) / name for name in ("requests", "responses"))
        for path in (requests, responses):
            os.mkfifo(path, 0o600)
        # Opening one end blocks until the other end is open, except for a descriptor that is both.
        both = os.open(requests, os.O_RDWR | os.O_CLOEXEC)
        undo.callback(os.close, both)
        read_end = os.open(responses, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.ExitStack() as on_error:
            on_error.callback(os.close, read_end)
            streams = jvm.java.io.FileInputStream(str(requests)), jvm.java.io.FileOutputStream(str(responses))
            write_end = os.open(requests, os.O_WRONLY | os.O_CLOEXEC)
            on_error.pop_all()
        os.set_blocking(read_end, True)
        return write_end, read_end, streams


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class _PlanReader:
    """Reads a Scala object with everything that was passed to its constructor: case classes by `productIterator`,
    collections by `iterator`. Other objects are leaves; their class is still checked."""

    def __init__(self) -> None:
        self._count = 0

    def read(self, value: Any) -> PlanPart:
        if value is None or isinstance(value, (str, int, float, bool)):
            return value
        if isinstance(value, (bytes, bytearray)):
            return JavaValue("byte[]", ())
        self._count += 1
        if self._count > VALUES_MAX:
            raise StatementInvalid(
                f"the statement has more than {VALUES_MAX} parts, too many to check; split it, or join with a table "
                "instead of listing values"
            )
        name = str(value.getClass().getName())
        if is_leaf(name):
            return JavaValue(name, ())
        if name == OPTIONS_CLASS:
            return JavaValue(name, (str(value.asCaseSensitiveMap().toString()),))
        iterator = self._iterator(name, value)
        parts: list[PlanPart] = []
        while iterator is not None and iterator.hasNext():
            parts.append(self.read(iterator.next()))
        return JavaValue(name, tuple(parts))

    def _iterator(self, name: str, value: Any) -> Any:
        method = "iterator" if name.startswith("scala.collection.") else "productIterator"
        try:
            return getattr(value, method)()
        except Py4JError as error:
            if "does not exist" in str(error):
                return None
            raise


OPTIONS_CLASS: Final = "org.apache.spark.sql.util.CaseInsensitiveStringMap"


def _reason(error: Exception) -> str:
    if isinstance(error, (PySparkException, Py4JError)):
        return error_line(error)
    return one_line(f"{type(error).__name__}: {error}")
