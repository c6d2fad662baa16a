"""What `headrace up` offers on loopback: one Spark session that owns the Derby metastore and serves everybody.

Derby serves one JVM, so one JVM has it open and the others ask that one. It speaks the metastore's thrift API through
Hive's own handler behind a server socket that is bound to the given address (Hive's own service main would listen on
every interface), and SQL through Spark's Thrift server if asked.

Run as `python -m headrace.pipeline.endpoint --data-dir D --metastore-listen 127.0.0.1:0`, with `--sql-listen
127.0.0.1:0` if asked. Prints one ready line. SIGTERM and SIGINT end it with code 0; if the JVM ends by itself, the
code is 2. Whatever was acknowledged before a crash is there again afterwards: that is Derby's log.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.hive_ddl.errors import HiveDdlError
from headrace.pipeline.java import JavaNotFoundError, ensure_java
from headrace.settings import Address, SettingsError, load_settings

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 200  # served at once, a thread each; a Spark session holds two to four, idle most of the time
CONNECTION_THREADS_MIN = 4
STOP_GRACE_S = 1  # for calls under way when the endpoint ends; clients that idle would hold it up for ever
POLL_S = 0.5
SQL_PORT_KEY = "spark.hadoop.hive.server2.thrift.port"
SQL_HOST_KEY = "spark.hadoop.hive.server2.thrift.bind.host"


class EndpointError(Exception):
    """Why the endpoint cannot serve, in one line."""


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """`warehouse` is a folder; `conf` holds Spark properties."""

    data_dir: Path
    metastore_listen: Address
    sql_listen: Address | None
    warehouse: Path
    conf: tuple[tuple[str, str], ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    try:
        options = _parse(argv)
    except SettingsError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ensure_java(options.data_dir)
        serve(options, stop)
    except (EndpointError, HiveDdlError, JavaNotFoundError) as error:
        if stop.is_set():
            return 0
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    return 0


def serve(options: EndpointOptions, stop: threading.Event) -> None:
    """Serves until `stop` is set.

    Raises:
        EndpointError: an address is taken, or the JVM ended.
        HiveDdlError: the metastore or Spark could not be opened.
    """
    from headrace.hive_ddl.executors.session import close_session, open_session
    from headrace.hive_ddl.table import local_location

    _check_free(options.metastore_listen, "metastore", "hive.listen")
    conf = dict(options.conf)
    if options.sql_listen is not None:
        sql_port = _check_free(options.sql_listen, "SQL endpoint", "sql.listen")
        conf |= {SQL_HOST_KEY: options.sql_listen.host, SQL_PORT_KEY: str(sql_port)}
    session = open_session(
        app_name="headrace endpoint",
        master=conf.pop("spark.master"),
        metastore_uri=None,
        data_dir=options.data_dir,
        warehouse_uri=local_location(options.warehouse),
        extra=conf,
    )
    try:
        if stop.is_set():
            return
        with _metastore(session, options.metastore_listen) as metastore:
            words = [f"metastore=thrift://{metastore}"]
            if options.sql_listen is not None:
                _start_sql(session, options.sql_listen)
                words.append(f"sql={Address(options.sql_listen.host, sql_port)}")
            print("ready", *words, flush=True)
            _wait(session, stop)
    finally:
        logger.info("endpoint_stopping")
        close_session(session)


@contextlib.contextmanager
def _metastore(session: Any, listen: Address) -> Iterator[Address]:
    """Serves the metastore's thrift API on `listen` while the context is open; yields the address with its port."""
    from py4j.protocol import Py4JError, Py4JJavaError

    from headrace.hive_ddl.executors.failures import root_cause
    from headrace.hive_ddl.executors.metastore import hive_conf

    jvm = session._jvm
    thrift, hive = jvm.org.apache.thrift, jvm.org.apache.hadoop.hive.metastore
    conf = hive_conf(session)
    handler = hive.RetryingHMSHandler.getProxy(conf, hive.HiveMetaStore.HMSHandler("headrace", conf, False), False)
    try:
        server_socket = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress(listen.host, listen.port))
    except Py4JJavaError as error:
        raise EndpointError(f"the metastore cannot listen on {listen}: {root_cause(error)}") from error
    args = getattr(thrift.server, "TThreadPoolServer$Args")(server_socket)
    args.processor(hive.TSetIpAddressProcessor(handler))
    args.transportFactory(thrift.transport.TTransportFactory())
    args.protocolFactory(getattr(thrift.protocol, "TBinaryProtocol$Factory")())
    args.minWorkerThreads(CONNECTION_THREADS_MIN)
    args.maxWorkerThreads(CONNECTIONS_MAX)
    args.stopTimeoutVal(STOP_GRACE_S)
    server = thrift.server.TThreadPoolServer(args)
    # The call to serve() returns when the server stops, so it needs a thread, and the JVM gives that a connection.
    serving = threading.Thread(target=_serve_until_stopped, args=(server,), name="metastore", daemon=True)
    serving.start()
    try:
        yield Address(listen.host, server_socket.getServerSocket().getLocalPort())
    finally:
        with contextlib.suppress(Py4JError, OSError):
            server.stop()
        serving.join(STOP_GRACE_S + 2)


def _serve_until_stopped(server: Any) -> None:
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        server.serve()


def _start_sql(session: Any, listen: Address) -> None:
    from py4j.protocol import Py4JJavaError

    from headrace.hive_ddl.executors.failures import root_cause

    try:
        server = session._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
        server.startWithContext(session._jsparkSession.sqlContext())
    except Py4JJavaError as error:
        raise EndpointError(f"the SQL endpoint cannot listen on {listen}: {root_cause(error)}") from error


def _wait(session: Any, stop: threading.Event) -> None:
    process = getattr(session.sparkContext._gateway, "proc", None)
    while not stop.wait(POLL_S):
        if process is not None and process.poll() is not None:
            raise EndpointError(f"Spark's JVM ended with code {process.returncode}; see logs/spark.log")


def _check_free(listen: Address, what: str, key: str) -> int:
    """The port to listen on: the one asked for if it is free, else for port 0 one that the system says is free.

    Starting a JVM takes seconds, so a taken port is found before.
    """
    try:
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((listen.host, listen.port))
            return int(trial.getsockname()[1])
    except OSError as error:
        raise EndpointError(
            f"the {what} cannot listen on {listen}: {error.strerror}; choose another address with {key}"
        ) from error


def _parse(argv: Sequence[str] | None) -> EndpointOptions:
    parser = argparse.ArgumentParser(prog="headrace.pipeline.endpoint", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of the metastore and the logs")
    parser.add_argument("--metastore-listen", type=Address.parse, required=True, metavar="HOST:PORT")
    parser.add_argument("--sql-listen", type=Address.parse, metavar="HOST:PORT", help="whoever reaches it runs code")
    parser.add_argument("--warehouse", type=Path, help="folder of the tables (default: DATA_DIR/warehouse)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark property; repeats")
    args = parser.parse_args(argv)
    # `[spark]` is read like every command reads it: on a command line its values, passwords among them, would show in
    # the process list.
    spark = load_settings(environment=os.environ, working_dir=Path.cwd(), home=Path.home()).spark
    pairs = [(f"spark.{key}", value) for key, value in spark.items()]
    for text in args.conf:
        key, equals, value = text.partition("=")
        if not key or not equals:
            parser.error(f"--conf {text!r}: expected KEY=VALUE")
        pairs.append((key if key.startswith("spark.") else f"spark.{key}", value))
    return EndpointOptions(
        data_dir=args.data_dir.resolve(),
        metastore_listen=args.metastore_listen,
        sql_listen=args.sql_listen,
        warehouse=(args.warehouse or args.data_dir / "warehouse").resolve(),
        conf=tuple(pairs),
    )


if __name__ == "__main__":
    sys.exit(main())
