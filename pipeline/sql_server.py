"""The SQL of `headrace up`: one Spark session that answers `headrace sql`, and PyHive and beeline where asked for.

It is a process of its own, with memory of its own: a query that needs more ends it and nothing else, and `headrace up`
starts it again. It reaches the metastore as everybody does, over thrift, and may lose it for a while.

Run as `python -m headrace.pipeline.sql_server --data-dir D --metastore thrift://… --socket PATH`, with `--listen
127.0.0.1:10000` for the Thrift server.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.jvm_server import (
    JvmServerError,
    free_port,
    jvm_end_reason,
    jvm_properties,
    run_server,
    wait_for_end,
)
from headrace.pipeline.sql import QueryFailed, check_statement, run_query
from headrace.pipeline.sql_protocol import (
    NOT_STARTED,
    QUERY_BYTES_MAX,
    STARTED,
    SqlRequest,
    error_bytes,
    listening,
    read_request,
    read_to_end,
    response_bytes,
)
from headrace.settings import Address, Settings

logger = logging.getLogger(__name__)

QUERIES_MAX = 4  # run at once; others wait
CONNECTIONS_MAX = 64  # connections at once; a further one is refused
REQUEST_TIMEOUT_S = 10.0  # for the whole of a question
POLL_S = 0.2
RESPONSE_GRACE_S = 0.5  # until whoever waited for the socket has said what he wants
JVM_END_S = 5.0  # between a call that failed for its JVM's end and that end
WORDS_OF_THE_END = ("Py4J", "py4j", "Connection", "Answer from Java", "OutOfMemory", "cancelled")
METASTORE_TRIES = 30  # a second apart: one that died is started again meanwhile
PORT_KEY = "hadoop.hive.server2.thrift.port"
HOST_KEY = "hadoop.hive.server2.thrift.bind.host"


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """`warehouse` is a directory, `memory` a JVM's `-Xmx`; `conf` holds Spark properties."""

    data_dir: Path
    metastore: str
    socket: Path
    listen: Address | None
    warehouse: Path
    master: str
    memory: str
    conf: Mapping[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    return run_server(lambda settings: _parse(argv, settings), lambda options: options.data_dir, serve)


def serve(options: SqlOptions, stop: threading.Event) -> None:
    """Serves until `stop` is set.

    Raises:
        JvmServerError: an address is taken, or the JVM ended.
        HiveDdlError: there is no metastore, or Spark did not start.
    """
    from headrace.hive_ddl.executors.session import close_session, open_session
    from headrace.hive_ddl.table import local_location

    conf = {**options.conf, "hadoop.hive.metastore.connect.retries": str(METASTORE_TRIES)}
    words = [f"sql_socket={options.socket}"]
    if options.listen is not None:
        port = free_port(options.listen, "SQL endpoint", "sql.listen")
        conf |= {HOST_KEY: options.listen.host, PORT_KEY: str(port)}
        words.append(f"sql={Address(options.listen.host, port)}")
    session = open_session(
        app_name="headrace sql",
        master=options.master,
        metastore_uri=options.metastore,
        data_dir=options.data_dir,
        warehouse_uri=local_location(options.warehouse),
        extra=conf,
    )
    gateway = session.sparkContext._gateway
    try:
        if stop.is_set():
            return
        if options.listen is not None:
            _start_thrift(session, options.listen)
        with listening(options.socket) as listener:
            desk = _QueryServer(session, options.memory)
            threading.Thread(target=desk.accept_queries, args=(listener,), name="sql", daemon=True).start()
            print("ready", *words, flush=True)
            threading.Thread(target=desk.warm_up, name="warm-up", daemon=True).start()
            try:
                wait_for_end(gateway, stop, "sql.memory", options.memory)
            finally:
                desk.finish_responses()
    finally:
        logger.info("sql_stopping")
        close_session(session)


class _QueryServer:
    """Takes questions from the socket, each in a thread of its own, with a Spark session of its own."""

    def __init__(self, session: Any, memory: str) -> None:
        self._session = session
        self._jvm: subprocess.Popen[bytes] | None = getattr(session.sparkContext._gateway, "proc", None)
        self._memory = memory
        self._numbers = itertools.count(1)
        self._asking: set[threading.Thread] = set()
        self._turns = threading.Semaphore(QUERIES_MAX)

    def warm_up(self) -> None:
        """A first query loads classes for seconds: one of ours, once nobody waits any more who asked while SQL started.
        His may be one that needs less, and what is done beside it comes off the same cores."""
        time.sleep(RESPONSE_GRACE_S)
        for thread in list(self._asking):
            thread.join()
        self._answer(SqlRequest("SELECT 1 AS one", "default", with_values=True), "headrace-sql-warm-up")

    def accept_queries(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed: the server ends
                return
            self._asking = {thread for thread in self._asking if thread.is_alive()}
            if len(self._asking) >= CONNECTIONS_MAX:
                _say(connection, error_bytes(f"{CONNECTIONS_MAX} queries are being answered already; try again later"))
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._asking.add(thread)  # of which all can be waited for

    def finish_responses(self) -> None:
        """Those who asked are told what happened before the process ends."""
        for thread in list(self._asking):
            thread.join(POLL_S)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(REQUEST_TIMEOUT_S)
                question = read_request(read_to_end(connection, QUERY_BYTES_MAX))
            except (OSError, ValueError) as error:
                _say(connection, error_bytes(f"not a question: {error}"))
                return
            connection.settimeout(None)
            with self._turns:
                if self._jvm is not None and self._jvm.poll() is not None:
                    _say(connection, NOT_STARTED)
                    return
                # From here on the question is not asked again: it may be what ends the JVM.
                _say(connection, STARTED)
                answer = self._run_until_hangup(connection, question)
            _say(connection, answer)

    def _run_until_hangup(self, connection: socket.socket, question: SqlRequest) -> bytes:
        """The answer; Spark is told to let the query be when nobody is left to hear it."""
        group = f"headrace-sql-{next(self._numbers)}"
        answers: list[bytes] = []
        # Spark's job groups are of a thread, which is one in the JVM as well.
        working = threading.Thread(target=lambda: answers.append(self._answer(question, group)), daemon=True)
        working.start()
        hung_up = select.poll()
        hung_up.register(connection.fileno(), select.POLLHUP | select.POLLERR)
        while working.is_alive():
            working.join(POLL_S)
            if working.is_alive() and hung_up.poll(0):
                # Again and again: it cancels the jobs that there are now, and a query has one after the other.
                self._session.sparkContext.cancelJobGroup(group)
        return answers[0] if answers else b""

    def _answer(self, question: SqlRequest, group: str) -> bytes:
        context = self._session.sparkContext
        try:
            context.setJobGroup(group, question.statement[:100], interruptOnCancel=True)
            statement = check_statement(question.statement)
            session = self._session.newSession()
            return response_bytes(run_query(session, statement, question.database, with_values=question.with_values))
        except QueryFailed as error:
            return error_bytes(self._reason(str(error)))
        except Exception as error:  # py4j raises what it likes when its JVM is gone; somebody waits for the answer
            logger.warning("query_failed reason=%s", error)
            return error_bytes(self._reason(f"{type(error).__name__}: {error}"))

    def _reason(self, otherwise: str) -> str:
        """Why there is no answer: the end of the JVM, if that is why."""
        if self._jvm is None or not any(word in otherwise for word in WORDS_OF_THE_END):
            return otherwise
        try:
            code = self._jvm.wait(JVM_END_S)
        except subprocess.TimeoutExpired:  # it lives, so it was something else
            return otherwise
        return f"the query ended with all of SQL, which is started again: {jvm_end_reason(code, 'sql.memory', self._memory)}"


def _say(connection: socket.socket, answer: bytes) -> None:
    try:
        connection.sendall(answer)
    except OSError as error:
        logger.info("answer_unheard reason=%s", error)


def _start_thrift(session: Any, listen: Address) -> None:
    from py4j.protocol import Py4JJavaError

    from headrace.hive_ddl.executors.jvm_errors import root_cause

    try:
        server = session._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
        server.startWithContext(session._jsparkSession.sqlContext())
    except Py4JJavaError as error:
        raise JvmServerError(f"the SQL endpoint cannot listen on {listen}: {root_cause(error)}") from error


def _parse(argv: Sequence[str] | None, settings: Settings) -> SqlOptions:
    parser = argparse.ArgumentParser(prog="headrace.pipeline.sql_server", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the logs and of Spark's scratch")
    parser.add_argument("--metastore", required=True, metavar="URI", help="thrift://host:port")
    parser.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where `headrace sql` asks")
    parser.add_argument("--listen", type=Address.parse, metavar="HOST:PORT", help="whoever reaches it runs code")
    parser.add_argument("--warehouse", type=Path, help="directory of the tables (default: DATA_DIR/warehouse)")
    args = parser.parse_args(argv)
    return SqlOptions(
        data_dir=args.data_dir.resolve(),
        metastore=args.metastore,
        socket=args.socket.resolve(),
        listen=args.listen,
        warehouse=(args.warehouse or args.data_dir / "warehouse").resolve(),
        master=settings.spark.get("master", "local[*]"),
        memory=settings.sql.memory,
        conf=jvm_properties(settings, settings.sql.memory),
    )


if __name__ == "__main__":
    sys.exit(main())
