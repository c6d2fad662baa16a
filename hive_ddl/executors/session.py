"""Opens the Spark session that accesses the metastore and runs queries.

A process has at most one session at a time, because a JVM cannot switch to another metastore. The JVM's output goes to
`<data_dir>/logs/spark.log`, so that a command's standard error contains only its own lines; failures are reported as
one error.

Before a JVM is started for an embedded Derby metastore, the owner of the database is checked, see
`hive_ddl.executors.derby`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headrace.hive_ddl.errors import MetastoreMisconfigured, MetastoreUnavailable, SessionFailed
from headrace.hive_ddl.executors.class_archive import archive_options
from headrace.hive_ddl.executors.derby import find_derby_owner, wait_for_derby
from headrace.hive_ddl.executors.jvm_errors import METASTORE_FAILURES, root_cause
from headrace.hive_ddl.executors.metastore import new_client
from headrace.settings.masking import is_secret

logger = logging.getLogger(__name__)

METASTORE_DIRECTORY = "metastore"
CONNECT_TIMEOUT_S = 5.0
LOG_BYTES_MAX = 16 * 1024 * 1024  # a larger log is renamed to .log.1 at the start of a session
LOG_FILE: Final = Path("logs") / "spark.log"
JVM_STOP_TIMEOUT_S = 10.0

METASTORE_WAREHOUSE = "_hive"
"""Directory of the databases inside the warehouse. The underscore separates it from topic directories."""

CHATTY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j", "py4j.clientserver")

BASE_PROPERTIES: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Schema texts and defaults contain ${…} as data, not as a variable.
    "spark.sql.variable.substitute": "false",
    "spark.sql.session.timeZone": "UTC",
    # A query must fail rather than leave out rows. (Hive's reader leaves out missing files even so; loads find these.)
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.catalogImplementation": "hive",
    # Statistics would list every directory for each added partition and are not used.
    "spark.hadoop.hive.stats.autogather": "false",
    # The default retries a failing insert ten times every two seconds, which looks like a hang.
    "spark.hadoop.hive.hmshandler.retry.attempts": "1",
    # The metastore compares columns by position when Spark alters a table; a changed struct would block all further
    # changes.
    "spark.hadoop.hive.metastore.disallow.incompatible.col.type.changes": "false",
    "spark.hadoop.hive.metastore.schema.verification": "false",
    "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
    "spark.hadoop.hive.async.log.enabled": "false",
    # Without it, Python workers search the working directory for modules first.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}

LOOPBACK = "127.0.0.1"
LOCAL_ADDRESS_VARIABLE = "SPARK_LOCAL_IP"

LOCAL_PROPERTIES: Mapping[str, str] = {
    # Without it, the driver and its block manager listen on the machine's address.
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # Python tasks are three times cheaper, and no port is needed. Directory names on clusters are too long for socket
    # names.
    "spark.python.unix.domain.socket.enabled": "true",
}

BASE_JAVA_OPTIONS = (
    # The Avro reader converts dates and timestamps through the JVM's time zone.
    "-Duser.timezone=UTC",
    # The metastore's get_fields and get_schema read fields of URIs by reflection.
    "--add-opens=java.base/java.net=ALL-UNNAMED",
    "-XX:+UseSerialGC",
)
SHORT_LIVED_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1",)
"""Java options for a session of a few seconds: only the JVM's first compiler, because the session ends before the
second one pays off."""
LONG_LIVED_JAVA_OPTIONS = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier3DelayOn=0",
)
"""Java options for a long session that make the start faster. Half of a start's processor time is spent in the JVM's
second compiler (C2). Its thresholds for calls are therefore ten times higher than the default, and methods that wait
for it are no longer profiled. The threshold for loops is unchanged."""


def open_session(
    *,
    app_name: str,
    master: str,
    metastore_uri: str | None,
    data_dir: Path,
    warehouse_uri: str,
    extra: Mapping[str, str] = MappingProxyType({}),
    short_lived: bool = False,
) -> SparkSession:
    """Opens a session and checks, without retries, that the metastore is reachable.

    Args:
        app_name: shown by Spark.
        master: Spark's master URL.
        metastore_uri: thrift://host:port, or None for the Derby metastore in `data_dir`, created if missing.
        data_dir: directory of the Derby metastore, its log and Spark's log.
        warehouse_uri: URI of the warehouse in Hadoop's spelling, without percent-encoding.
        extra: Spark properties that override ours, with or without the prefix `spark.`; `master` is ignored, and
            `driver.extraJavaOptions` is added to ours.
        short_lived: for a command with a single query.

    Raises:
        MetastoreUnavailable: the metastore cannot be used, or another process owns the Derby metastore.
        SessionFailed: Spark did not start, or this process already has a session.
    """
    if SparkContext._active_spark_context is not None:
        raise SessionFailed("this process already has a Spark session; close it first")
    _silence_libraries()
    data_dir = data_dir.resolve()
    if metastore_uri is None:
        wait_for_derby(data_dir / METASTORE_DIRECTORY)
    else:
        check_metastore_reachable(metastore_uri)
    properties = session_properties(
        app_name=app_name,
        master=master,
        metastore_uri=metastore_uri,
        data_dir=data_dir,
        warehouse_uri=warehouse_uri,
        extra=extra,
        short_lived=short_lived,
    )
    session = _start(properties, _open_log(data_dir))
    metastore = metastore_uri or str(data_dir / METASTORE_DIRECTORY)
    try:
        _reach_metastore(session, metastore, data_dir if metastore_uri is None else None)
    except BaseException:
        close_session(session)
        raise
    return session


def open_session_without_metastore(data_dir: Path, properties: Mapping[str, str]) -> SparkSession:
    """Opens a session without checking its metastore, for work that needs none.

    Args:
        data_dir: directory of Spark's log.
        properties: the Spark properties of the session.

    Raises:
        SessionFailed: Spark did not start, or its log cannot be written.
    """
    _silence_libraries()
    return _start(properties, _open_log(data_dir.resolve()))


def open_jvm(data_dir: Path, properties: Mapping[str, str]) -> JavaGateway:
    """Starts a JVM with the classes of Spark and Hive but no Spark session. Returns the gateway through which Python
    calls it.

    Args:
        data_dir: directory of the JVM's log.
        properties: Spark properties; those that begin with `spark.driver.` configure the JVM.

    Raises:
        SessionFailed: the JVM did not start.
    """
    _silence_libraries()
    log_path = _open_log(data_dir.resolve())
    with _session_failures(log_path):
        return _launch(_spark_conf(properties), log_path)


def shared_jvm(data_dir: Path, properties: Mapping[str, str]) -> JavaGateway:
    """Returns the gateway to the JVM of this process and starts the JVM if needed; a later session uses the same JVM.

    Args:
        data_dir: directory of the JVM's log.
        properties: Spark properties with which a JVM is started; ignored if there is one.

    Raises:
        SessionFailed: the JVM did not start.
    """
    gateway: JavaGateway | None = SparkContext._gateway
    if gateway is None:
        gateway = open_jvm(data_dir, properties)
        SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
    return gateway


def close_session(session: SparkSession) -> None:
    """Stops the session and its JVM; a new session can be opened in this process afterwards."""
    try:
        session.stop()
    except Exception as error:  # the JVM may have ended already, which does not matter when closing
        logger.debug("session_stop_failed reason=%s", error)
    close_shared_jvm()


def close_shared_jvm() -> None:
    """Stops the JVM that the sessions of this process share, if there is one."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    close_jvm(gateway)


def close_jvm(gateway: JavaGateway) -> None:
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        # The JVM ends when the pipe to it closes.
        process.stdin.close()
        try:
            process.wait(JVM_STOP_TIMEOUT_S)
        except Exception:
            process.kill()
            process.wait()


def session_properties(
    *,
    app_name: str,
    master: str,
    metastore_uri: str | None,
    data_dir: Path,
    warehouse_uri: str,
    extra: Mapping[str, str] = MappingProxyType({}),
    short_lived: bool = False,
) -> dict[str, str]:
    """Returns the Spark properties with which `open_session`, given the same arguments, opens a session.

    Args:
        metastore_uri: thrift://host:port, or None for the Derby metastore in `data_dir`.
        data_dir: as for `open_session`, but absolute.
        warehouse_uri: URI of the warehouse in Hadoop's spelling, without percent-encoding.
        extra: Spark properties that override ours, with or without the prefix `spark.`; `master` is ignored, and
            `driver.extraJavaOptions` is added to ours.
        short_lived: whether the session is for one query, so that the JVM should start fast.
    """
    java_options = [*BASE_JAVA_OPTIONS, *(SHORT_LIVED_JAVA_OPTIONS if short_lived else LONG_LIVED_JAVA_OPTIONS)]
    java_options += archive_options()
    properties = {"spark.app.name": app_name, "spark.master": master, **BASE_PROPERTIES}
    if master.startswith("local"):
        properties.update(LOCAL_PROPERTIES)
    databases = f"{warehouse_uri.rstrip('/')}/{METASTORE_WAREHOUSE}"
    properties["spark.sql.warehouse.dir"] = databases
    properties["spark.hadoop.hive.metastore.warehouse.dir"] = databases  # the same for clients that bypass Spark
    scratch = data_dir / "spark"
    properties["spark.hadoop.hive.exec.scratchdir"] = str(scratch / "scratch")
    properties["spark.hadoop.hive.exec.local.scratchdir"] = str(scratch / "scratch-local")
    properties["spark.hadoop.hive.downloaded.resources.dir"] = str(scratch / "resources")
    properties["spark.hadoop.hive.server2.logging.operation.enabled"] = "false"
    if metastore_uri is None:
        database = data_dir / METASTORE_DIRECTORY
        properties["spark.hadoop.javax.jdo.option.ConnectionURL"] = f"jdbc:derby:;databaseName={database};create=true"
        java_options.append(f'"-Dderby.stream.error.file={data_dir / "logs" / "derby.log"}"')
    else:
        properties["spark.hadoop.hive.metastore.uris"] = metastore_uri
    for key, value in extra.items():
        name = key if key.startswith("spark.") else f"spark.{key}"
        if name == "spark.driver.extraJavaOptions":
            java_options.append(value)
        elif name != "spark.master":
            properties[name] = value
    properties["spark.driver.extraJavaOptions"] = " ".join(java_options)
    properties.setdefault("spark.executor.extraJavaOptions", "-Duser.timezone=UTC")
    return properties


def check_metastore_reachable(uri: str) -> None:
    """Checks the connection to the metastore before a JVM is started, to fail early with a reason.

    Args:
        uri: one or several `thrift://host:port`, separated by commas; one that is reachable is enough.

    Raises:
        MetastoreUnavailable: nothing listens at these addresses.
        MetastoreMisconfigured: the text is no such address.
    """
    problem = ""
    for part in uri.split(","):
        try:
            parts = urlsplit(part.strip())
            if parts.scheme != "thrift" or not parts.hostname or parts.port is None:
                raise ValueError
            socket.create_connection((parts.hostname, parts.port), CONNECT_TIMEOUT_S).close()
        except ValueError:
            raise MetastoreMisconfigured(uri, "expected thrift://host:port; correct hive.metastore") from None
        except OSError as error:
            problem = error.strerror or str(error)
            continue
        return
    raise MetastoreUnavailable(uri, f"{problem}; start the metastore service or correct hive.metastore")


def _silence_libraries() -> None:
    """Silences the failure logs of pyspark and py4j; their stack traces repeat the raised error."""
    for chatty in CHATTY_LOGGERS:
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    if _is_not_of_py4j not in logging.getLogger().filters:
        logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """A log filter that drops the records of py4j. It is set on the root logger, because py4j logs directly to that."""
    return Path(record.pathname).parent.name != "py4j"


def _open_log(data_dir: Path) -> Path:
    path = data_dir / LOG_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
            path.replace(path.with_suffix(".log.1"))
        path.touch()
    except OSError as error:
        raise SessionFailed(f"cannot write Spark's log {path}: {error.strerror}; check data_dir") from error
    return path


def _start(properties: Mapping[str, str], log_path: Path) -> SparkSession:
    conf = _spark_conf(properties)
    with _session_failures(log_path):
        return SparkSession(SparkContext(conf=conf, gateway=SparkContext._gateway or _launch(conf, log_path)))


def _spark_conf(properties: Mapping[str, str]) -> SparkConf:
    # If a JVM runs already, SparkConf also contains the properties that spark-submit derived at its start; YARN needs
    # one of them to ship pyspark. Otherwise Spark adds them later.
    conf = SparkConf()
    for key, value in properties.items():
        conf.set(key, value)
    return conf


def _launch(conf: SparkConf, log_path: Path) -> JavaGateway:
    """Starts the JVM and returns the gateway to it.

    Secrets are passed to the running JVM as the system properties that spark-submit would set, because every user of
    the machine can read a command line.

    Args:
        conf: the Spark properties, with secrets.
        log_path: file to which the JVM's output is appended.
    """
    is_local = (conf.get("spark.master") or "").startswith("local")
    secrets = {key: value for key, value in conf.getAll() if is_secret(key)}
    public = SparkConf().setAll([(key, value) for key, value in conf.getAll() if key not in secrets])
    with log_path.open("ab") as log, _deferred_interrupts(), _local_address(LOOPBACK if is_local else None):
        gateway = launch_gateway(public, {"stdout": log, "stderr": log})
    for key, value in secrets.items():
        gateway.jvm.java.lang.System.setProperty(key, value)
    return gateway


@contextlib.contextmanager
def _session_failures(log_path: Path) -> Iterator[None]:
    log_start = log_path.stat().st_size
    try:
        yield
    except (PySparkException, OSError) as error:
        raise SessionFailed(
            f"Spark did not start: {_failure_line(log_path, log_start, str(error) or repr(error))}"
        ) from error
    except Py4JError as error:
        raise SessionFailed(f"Spark did not start: {root_cause(error)}") from error


@contextlib.contextmanager
def _local_address(address: str | None) -> Iterator[None]:
    """While the context is open, sets the variable that gives Spark its local address, unless the environment already
    has it or `address` is None.

    Spark determines the address before it reads a property, and exits if the machine's own name has none, as in some
    containers.
    """
    if address is None or LOCAL_ADDRESS_VARIABLE in os.environ:
        yield
        return
    os.environ[LOCAL_ADDRESS_VARIABLE] = address
    try:
        yield
    finally:
        del os.environ[LOCAL_ADDRESS_VARIABLE]


@contextlib.contextmanager
def _deferred_interrupts() -> Iterator[None]:
    """Defers Ctrl-C until the context ends; does nothing outside of the main thread, which alone receives interrupts.

    An interrupt of `launch_gateway` makes it delete the file to which the starting JVM writes its port. That JVM would
    then neither serve nor exit, and could not be stopped, because its process id would be unknown.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if received:
        signal.raise_signal(signal.SIGINT)


def _failure_line(log_path: Path, start: int, default: str) -> str:
    """Returns the line of the JVM's output that best explains why it ended, and the name of the file.

    Args:
        log_path: the file with the output.
        start: position in the file at which the output of this JVM starts.
        default: the text to return if there is no output; only its first line is used.
    """
    with log_path.open("rb") as log:
        log.seek(start)
        lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith(("at ", "WARNING", "Using Spark"))]
    if not messages:
        return f"{default.splitlines()[0]} (log: {log_path})"
    found = next((i for i, line in enumerate(messages) if "rror" in line or "xception" in line), len(messages) - 1)
    # Java prints "Error occurred during initialization of VM" and the reason in the next line.
    end = found + (2 if messages[found].endswith("initialization of VM") else 1)
    return f"{': '.join(messages[found:end])} (log: {log_path})"


def _reach_metastore(session: SparkSession, metastore: str, derby_dir: Path | None) -> None:
    try:
        client = new_client(session)
        client.getAllDatabases()
        client.close()
    except METASTORE_FAILURES as error:
        reason = root_cause(error)
        if derby_dir is not None and ("XSDB6" in reason or "Another instance of Derby" in reason):
            reason = f"{find_derby_owner(derby_dir / METASTORE_DIRECTORY) or 'another process'} opened it meanwhile"
        raise MetastoreUnavailable(metastore, reason) from error
