"""The Spark session of a load: started on first use, and closed with the load or reused by the following loads.

A process has one session and one set of settings. Only the JVM and Spark are reused; connections to the metastore and
cached table metadata belong to one load. Anything that invalidates a session (changed settings, the end of its JVM, a
failed load) ends the process, and its parent starts another one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.pipeline.jvm_server import jvm_properties
from headrace.pipeline.storage import prepare_environment, session_arguments
from headrace.settings import Settings
from headrace.settings.addresses import resolve_metastore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

WORKER_DAEMON_KEY = "python.daemon.module"
WORKER_DAEMON = "headrace.pipeline.worker_daemon"
"""Name of the module that Spark's worker daemon runs. It is not imported here, because only the daemon's process may
import it."""


def may_outlive_load(settings: Settings) -> bool:
    """Returns whether a Spark session may stay open between the loads of `headrace up`. On a cluster it would occupy
    executors. With an embedded metastore it would lock other processes out. With more time between loads
    (`loader.interval`) than `loader.spark_idle_timeout`, it would be closed before the next load."""
    loader = settings.loader
    return (
        settings.spark["master"].startswith("local")
        and resolve_metastore(settings) is not None
        and loader.interval.ms <= loader.spark_idle_timeout.ms
    )


class LoadSession:
    """Starts, reuses and closes the Spark session that loads use.

    Args:
        outlives_load: whether further loads of this process use the session. The caller then closes it.
    """

    def __init__(self, *, outlives_load: bool = False) -> None:
        self.outlives_load = outlives_load
        self._session: SparkSession | None = None
        self._is_reusable = False
        self.use_count = 0
        """How often loads have requested the session."""

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def is_alive(self) -> bool:
        """Whether the session can run a load: its JVM runs, and the metastore was available when it was opened, if
        Spark changes the tables."""
        process = getattr(self._gateway(), "proc", None)
        return self._is_reusable and process is not None and process.poll() is None

    def with_metastore(self, settings: Settings, *, is_use: bool = True) -> SparkSession:
        """Returns the Spark session, which the first call starts, after checking that the metastore is available.
        Called once per load.

        Args:
            is_use: whether the load has work for Spark; if not, the session may still become idle.

        Raises:
            MetastoreUnavailable: the metastore is not available.
            SessionFailed: Spark did not start.
            JavaNotFoundError: no usable Java was found.
        """
        from headrace.hive_ddl.executors.session import check_metastore_reachable, open_session

        metastore = resolve_metastore(settings)
        if self._session is None:
            logger.info("phase_started phase=spark")
            prepare_environment(settings)
            self._session = open_session(**self._arguments(settings, metastore), short_lived=True)
            self._is_reusable = True
        elif metastore is not None:
            check_metastore_reachable(metastore)
        self.use_count += is_use
        return self._session

    def any_session(self, settings: Settings) -> SparkSession:
        """Returns the open Spark session, or starts one without a metastore, for a load in which Spark changes no
        tables.

        Raises:
            SessionFailed: Spark did not start.
            JavaNotFoundError: no usable Java was found.
        """
        if self._session is None:
            from headrace.hive_ddl.executors.session import open_session_without_metastore, session_properties

            prepare_environment(settings)
            self._session = open_session_without_metastore(
                settings.data_dir, session_properties(**self._arguments(settings, None))
            )
            self._is_reusable = settings.hive.executor != "spark"
        self.use_count += 1
        return self._session

    def collect_garbage(self) -> None:
        """Runs the JVM's garbage collection between loads. Otherwise the JVM collects only when its heap is full."""
        if self._session is None:
            return
        try:
            self._session._jvm.System.gc()
        except Exception as error:  # py4j raises various errors when its JVM has ended; the next load checks for that
            logger.debug("session_not_tidied reason=%s", error)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            from headrace.hive_ddl.executors.session import close_session

            close_session(session)

    def _arguments(self, settings: Settings, metastore: str | None) -> dict[str, Any]:
        arguments = session_arguments(settings, metastore)
        if self.outlives_load:
            workers = {WORKER_DAEMON_KEY: WORKER_DAEMON} if settings.spark["master"].startswith("local") else {}
            arguments["extra"] = {**workers, **jvm_properties(settings)}
        return arguments

    def _gateway(self) -> Any:
        return None if self._session is None else self._session.sparkContext._gateway
