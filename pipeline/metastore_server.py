"""The metastore of `headrace up`: one JVM that has the Derby database open and serves everybody.

Derby serves one JVM, so one JVM has it open and the others ask that one. It speaks the metastore's thrift API through
Hive's own handler behind a server socket that is bound to the given address (Hive's own service main would listen on
every interface). Whatever was acknowledged before a crash is there again afterwards: that is Derby's log.

Run as `python -m headrace.pipeline.metastore_server --data-dir D --listen 127.0.0.1:0`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.jvm_server import JvmServerError, free_port, jvm_properties, run_server, wait_for_end
from headrace.settings import Address, Settings

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 200  # served at once, a thread each; a Spark session holds two to four, idle most of the time
CONNECTION_THREADS_MIN = 4
STOP_GRACE_S = 1  # for calls under way when the server ends; clients that idle would hold it up for ever


@dataclass(frozen=True, slots=True)
class MetastoreOptions:
    """`warehouse` is a directory, `memory` a JVM's `-Xmx`; `conf` holds Spark properties."""

    data_dir: Path
    listen: Address
    warehouse: Path
    memory: str
    conf: Mapping[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    return run_server(lambda settings: _parse(argv, settings), lambda options: options.data_dir, serve)


def serve(options: MetastoreOptions, stop: threading.Event) -> None:
    """Serves until `stop` is set.

    Raises:
        JvmServerError: the address is taken, or the JVM ended.
        HiveDdlError: the JVM did not start, or somebody else has the database open.
    """
    from headrace.hive_ddl.executors.derby import wait_for_derby
    from headrace.hive_ddl.executors.metastore import hive_conf_of
    from headrace.hive_ddl.executors.session import METASTORE_DIRECTORY, close_jvm, open_jvm, session_properties
    from headrace.hive_ddl.table import local_location

    wait_for_derby(options.data_dir / METASTORE_DIRECTORY)  # of one just killed, whose JVM has the port as well
    free_port(options.listen, "metastore", "hive.listen")
    properties = session_properties(
        app_name="headrace metastore",
        master="local",
        metastore_uri=None,
        data_dir=options.data_dir,
        warehouse_uri=local_location(options.warehouse),
        extra=options.conf,
        short_lived=True,  # its work is Derby's, and it is waited for
    )
    gateway = open_jvm(options.data_dir, properties)
    try:
        if stop.is_set():
            return
        with _listening(gateway.jvm, hive_conf_of(gateway.jvm, properties), options.listen) as address:
            print(f"ready metastore=thrift://{address}", flush=True)
            wait_for_end(gateway, stop, "hive.memory", options.memory)
    finally:
        logger.info("metastore_stopping")
        close_jvm(gateway)


@contextlib.contextmanager
def _listening(jvm: Any, conf: Any, listen: Address) -> Iterator[Address]:
    """Serves the metastore's thrift API on `listen` while the context is open; yields the address with its port."""
    from py4j.protocol import Py4JError, Py4JJavaError

    from headrace.hive_ddl.executors.jvm_errors import root_cause

    thrift, hive = jvm.org.apache.thrift, jvm.org.apache.hadoop.hive.metastore
    try:
        handler = hive.RetryingHMSHandler.getProxy(conf, hive.HiveMetaStore.HMSHandler("headrace", conf, False), False)
    except Py4JJavaError as error:
        raise JvmServerError(f"the metastore's database cannot be opened: {root_cause(error)}") from error
    try:
        server_socket = thrift.transport.TServerSocket(jvm.java.net.InetSocketAddress(listen.host, listen.port))
    except Py4JJavaError as error:
        raise JvmServerError(f"the metastore cannot listen on {listen}: {root_cause(error)}") from error
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
