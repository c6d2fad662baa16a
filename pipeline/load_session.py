"""The Spark of a load: started when it is first needed, ended with the load, or kept for the loads that come after.

A process has one session and one set of settings. What is kept is the JVM with its Spark alone: connections to the
metastore, and all that is known of tables, are of a load. Whatever makes a session unfit (other settings, the end of
its JVM, a load that failed) ends the whole process, and another one begins from nothing.
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
"""A name, since that module is for the workers' process alone."""


def may_outlive_load(settings: Settings) -> bool:
    """Whether a session may idle: on a cluster it would hold executors, and of an embedded metastore it is the owner,
    which keeps everybody else out. Not when the next load comes after it has been given up."""
    loader = settings.loader
    return (
        settings.spark["master"].startswith("local")
        and resolve_metastore(settings) is not None
        and loader.interval.ms <= loader.spark_idle_timeout.ms
    )


class LoadSession:
    """
    Args:
        outlives_load: whether further loads of this process are to have the same one; whoever says so closes it.
    """

    def __init__(self, *, outlives_load: bool = False) -> None:
        self.outlives_load = outlives_load
        self._session: SparkSession | None = None
        self._is_reached = False
        self.metastore_uses = 0

    @property
    def is_open(self) -> bool:
        return self._session is not None

    @property
    def is_alive(self) -> bool:
        """Whether it can do a load: the metastore was reached when it was opened, and its JVM has not ended."""
        process = getattr(self._gateway(), "proc", None)
        return self._is_reached and process is not None and process.poll() is None

    def reached(self, settings: Settings) -> SparkSession:
        """The session, on a metastore that answers; for once in a load.

        Raises:
            MetastoreUnavailable, SessionFailed.
        """
        from headrace.hive_ddl.executors.session import check_metastore_reachable, open_session

        metastore = resolve_metastore(settings)
        if self._session is None:
            logger.info("phase_started phase=spark")
            prepare_environment(settings)
            self._session = open_session(**self._arguments(settings, metastore), short_lived=True)
            self._is_reached = True
        elif metastore is not None:
            check_metastore_reachable(metastore)
        self.metastore_uses += 1
        return self._session

    def any(self, settings: Settings) -> SparkSession:
        """The session that there is, else one that has not looked for a metastore.

        Raises:
            SessionFailed.
        """
        if self._session is None:
            from headrace.hive_ddl.executors.session import open_session_without_metastore, session_properties

            prepare_environment(settings)
            self._session = open_session_without_metastore(
                settings.data_dir, session_properties(**self._arguments(settings, None))
            )
        return self._session

    def tidy(self) -> None:
        """Between loads: gives back what the last one left in the JVM, which looks by itself only when it is full."""
        if self._session is None:
            return
        try:
            self._session._jvm.System.gc()
        except Exception as error:  # py4j raises what it likes when its JVM is gone, which the next load looks for
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
