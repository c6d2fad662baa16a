"""The metastore server of `headrace up`: one JVM that opens the Derby database and serves all clients.

Derby allows one JVM per database, so all other processes connect to this one. It serves the metastore's Thrift API with
Hive's own handler on a server socket bound to the given address; the main program of Hive's service would listen on all
interfaces. Derby's log preserves acknowledged changes across crashes.

For `headrace backup-state`, it serves the Unix socket `metastore.sock` in the data directory, which only its owner can
open: a client sends the path of a directory and closes its side; the server writes a copy of the database below that
directory by Derby's online backup, and responds `ok` or with the reason of the failure.

Run as `python -m headrace.pipeline.metastore_server --data-dir D --listen 127.0.0.1:0`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.jvm_server import JvmServerError, free_port, jvm_properties, run_server, wait_for_end
from headrace.pipeline.server_metrics import metrics_path, publish_metrics
from headrace.pipeline.sql_protocol import listening, read_to_end
from headrace.settings import Address, Settings

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 200  # concurrent connections, one thread each; a Spark session has two to four, mostly idle
CONNECTION_THREADS_MIN = 4
BACKUP_SOCKET_NAME = "metastore.sock"
BACKUP_REQUEST_BYTES_MAX = 8192
BACKUP_REQUEST_TIMEOUT_S = 10.0
STOP_GRACE_S = 1  # for running calls at shutdown; idle clients would delay it indefinitely


@dataclass(frozen=True, slots=True)
class MetastoreOptions:
    """Options of the metastore server.

    `warehouse` is the directory of the tables, `memory` the heap size of the JVM (`-Xmx`), `conf` Spark properties.
    """

    data_dir: Path
    listen: Address
    warehouse: Path
    memory: str
    conf: Mapping[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    return run_server(lambda settings: _parse(argv, settings), lambda options: options.data_dir, serve)


def serve(options: MetastoreOptions, stop: threading.Event) -> None:
    """Opens the Derby database in a JVM and serves the metastore until the event `stop` is set.

    Raises:
        JvmServerError: the server cannot listen on the address, the database cannot be opened, or the JVM ended.
        HiveDdlError: the JVM did not start, or another process has the database open.
    """
    from headrace.hive_ddl.executors.derby import wait_for_derby
    from headrace.hive_ddl.executors.metastore import hive_conf_of
    from headrace.hive_ddl.executors.session import METASTORE_DIRECTORY, close_jvm, open_jvm, session_properties
    from headrace.hive_ddl.table import local_location

    # a metastore that was just killed holds the database and the port until its JVM ends
    wait_for_derby(options.data_dir / METASTORE_DIRECTORY)
    free_port(options.listen, "metastore", "hive.listen")
    properties = session_properties(
        app_name="headrace metastore",
        master="local",
        metastore_uri=None,
        data_dir=options.data_dir,
        warehouse_uri=local_location(options.warehouse),
        extra=options.conf,
        short_lived=True,  # clients wait for the start, and Derby does little work afterwards
    )
    gateway = open_jvm(options.data_dir, properties)
    try:
        if stop.is_set():
            return
        database = options.data_dir / METASTORE_DIRECTORY
        with (
            _serve_thrift(gateway.jvm, hive_conf_of(gateway.jvm, properties), options.listen) as address,
            listening(options.data_dir / BACKUP_SOCKET_NAME) as listener,
        ):
            threading.Thread(
                target=_serve_backups, args=(listener, gateway.jvm, database), name="backup", daemon=True
            ).start()
            publish_metrics(metrics_path(options.data_dir / "logs", "metastore"), gateway.jvm, stop)
            print(f"ready metastore=thrift://{address}", flush=True)
            wait_for_end(gateway, stop, "hive.memory", options.memory)
    finally:
        logger.info("metastore_stopping")
        close_jvm(gateway)


@contextlib.contextmanager
def _serve_thrift(jvm: Any, conf: Any, listen: Address) -> Iterator[Address]:
    """Serves the metastore's Thrift API on `listen` while the context is open. Yields the address with the actual port,
    which the operating system chooses for port 0.

    Args:
        jvm: py4j's view of the JVM.
        conf: the Hive configuration, an object in that JVM.
    """
    from py4j.protocol import Py4JError, Py4JJavaError

    from headrace.hive_ddl.executors.jvm_errors import root_cause

    thrift, hive = jvm.org.apache.thrift, jvm.org.apache.hadoop.hive.metastore
    try:
        handler = hive.RetryingHMSHandler.getProxy(conf, hive.HiveMetaStore.HMSHandler("headrace", conf, False), False)
    except Py4JJavaError as error:
        raise JvmServerError(
            f"the metastore's database cannot be opened: {root_cause(error)}; stop other processes that use "
            "data_dir, or restore its directory metastore from a backup"
        ) from error
    try:
        server_socket = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress(listen.host, listen.port))
    except Py4JJavaError as error:
        raise JvmServerError(
            f"the metastore cannot listen on {listen}: {root_cause(error)}; choose another address with hive.listen"
        ) from error
    args = getattr(thrift.server, "TThreadPoolServer$Args")(server_socket)
    args.processor(hive.TSetIpAddressProcessor(handler))
    args.transportFactory(thrift.transport.TTransportFactory())
    args.protocolFactory(getattr(thrift.protocol, "TBinaryProtocol$Factory")())
    args.minWorkerThreads(CONNECTION_THREADS_MIN)
    args.maxWorkerThreads(CONNECTIONS_MAX)
    args.stopTimeoutVal(STOP_GRACE_S)
    server = thrift.server.TThreadPoolServer(args)
    # serve() blocks until the server stops, so it needs a thread, for which py4j opens a separate connection.
    server_thread = threading.Thread(target=_serve_until_stopped, args=(server,), name="metastore", daemon=True)
    server_thread.start()
    try:
        yield Address(listen.host, server_socket.getServerSocket().getLocalPort())
    finally:
        with contextlib.suppress(Py4JError, OSError):
            server.stop()
        server_thread.join(STOP_GRACE_S + 2)


def _serve_until_stopped(server: Any) -> None:
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        server.serve()


def _serve_backups(listener: socket.socket, jvm: Any, database: Path) -> None:
    """Serves the requests for backups of the Derby database, one after another, until the socket is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # closed, because the server stops
            return
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(BACKUP_REQUEST_TIMEOUT_S)
            target = os.fsdecode(read_to_end(connection, BACKUP_REQUEST_BYTES_MAX))
            connection.sendall(_back_up(jvm, database, target).encode())


def _back_up(jvm: Any, database: Path, target: str) -> str:
    """Writes a copy of the Derby database below the directory `target`, while clients use the database. Returns "ok" or
    the reason of the failure."""
    from py4j.protocol import Py4JError, Py4JJavaError

    from headrace.hive_ddl.executors.jvm_errors import root_cause

    try:
        connection = jvm.java.sql.DriverManager.getConnection(f"jdbc:derby:;databaseName={database}")
        try:
            call = connection.prepareCall("CALL SYSCS_UTIL.SYSCS_BACKUP_DATABASE(?)")
            call.setString(1, target)
            call.execute()
        finally:
            connection.close()
    except Py4JJavaError as error:
        logger.warning("metastore_backup_failed reason=%s", root_cause(error))
        return str(root_cause(error))
    except (Py4JError, OSError) as error:
        return f"its JVM ended: {error}"
    logger.info("metastore_backed_up directory=%s", target)
    return "ok"


def _parse(argv: Sequence[str] | None, settings: Settings) -> MetastoreOptions:
    parser = argparse.ArgumentParser(
        prog="headrace.pipeline.metastore_server", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="directory of the metastore and the logs")
    parser.add_argument("--listen", type=Address.parse, required=True, metavar="HOST:PORT")
    parser.add_argument("--warehouse", type=Path, help="directory of the tables (default: DATA_DIR/warehouse)")
    args = parser.parse_args(argv)
    return MetastoreOptions(
        data_dir=args.data_dir.resolve(),
        listen=args.listen,
        warehouse=(args.warehouse or args.data_dir / "warehouse").resolve(),
        memory=settings.hive.memory,
        conf=jvm_properties(settings, settings.hive.memory),
    )


if __name__ == "__main__":
    sys.exit(main())
