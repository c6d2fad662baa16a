"""The environment of the demo: the interface, and its implementation with `headrace up` on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.audit.window import count_text
from headrace.hive_ddl.executors.session import close_session, open_session
from headrace.hive_ddl.table import local_location
from headrace.pipeline.demo.data import TOPICS
from headrace.pipeline.demo.queries import Table
from headrace.pipeline.up.part import Part, python_command, python_environment
from headrace.pipeline.up.plan import PartCommand
from headrace.settings import Settings, load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PrintDetail = Callable[[str], None]
"""Prints a line of progress."""
RunQuery = Callable[[str], Table]
"""Runs a query and returns its rows."""

SAMPLE_QUERY = "SELECT * FROM flights LIMIT 5"
START_TIMEOUT_S = 180.0
SERVERS = "registry,broker,metastore,console"  # the demo itself runs the loads and queries
YEAR = "range=1y&at=1372766400000"
"""The period of the data, the year 2013, in the console's URLs."""
DEMO_SETTINGS = {
    # Free ports, so that the demo does not conflict with other servers.
    "HEADRACE__REGISTRY__LISTEN": "127.0.0.1:0",
    "HEADRACE__BROKER__LISTEN": "127.0.0.1:0",
    "HEADRACE__HIVE__LISTEN": "127.0.0.1:0",
    "HEADRACE__CONSOLE__LISTEN": "127.0.0.1:0",
    "HEADRACE__GATEWAY__LISTEN": "127.0.0.1:0",
    # No scheduled loads, since the demo runs its own.
    "HEADRACE__LOADER__INTERVAL": "365d",
}


@dataclass(frozen=True, slots=True)
class RunnableCommand:
    """A command (`words`) with its environment and directory. If the directory is None, the command runs in that of the
    demo's process."""

    words: Sequence[str]
    environment: Mapping[str, str]
    directory: Path | None = None


class DemoEnvironment(Protocol):
    """The servers of the demo, the commands that use them, and an SQL engine.

    `settings` and `command` are available after `start`; `stop` may be called at any time.
    """

    settings: Settings

    def command(self, *arguments: str) -> RunnableCommand:
        """Returns the command that runs `headrace` with the given arguments, such as "load"."""
        ...

    def start(self, detail: PrintDetail) -> None: ...

    def stop(self) -> None: ...

    def engine(self, detail: PrintDetail) -> AbstractContextManager[RunQuery]:
        """Opens an SQL engine and yields a function that runs a query while the context is open. Table names in a query
        need no database name.

        Args:
            detail: prints a line about the progress of the start.
        """
        ...

    def next_steps(self) -> Sequence[str]:
        """Returns commands for exploring the result of the demo."""
        ...

    def console_url(self) -> str:
        """Returns the address of the console's page about the data; "" without a console."""
        ...


class LocalEnvironment:
    """The servers of `headrace up`, and Spark SQL in this process.

    Args:
        data_dir: data directory of the servers.
        environment: environment variables for the servers and the commands of the demo.
        servers: the parts of `up`, separated by commas.
        tables: the tables that queries use.
    """

    settings: Settings

    def __init__(
        self,
        data_dir: Path,
        environment: Mapping[str, str],
        servers: str = SERVERS,
        tables: Sequence[str] = tuple(TOPICS),
    ) -> None:
        self._environment: Mapping[str, str] = {**environment, **DEMO_SETTINGS, "HEADRACE__DATA_DIR": str(data_dir)}
        self._data_dir = data_dir
        self._servers = servers
        self._tables = tables
        self._up_process: Part | None = None

    def start(self, detail: PrintDetail) -> None:
        command = PartCommand("up", ("headrace", "up", "--data-dir", str(self._data_dir), "--only", self._servers))
        self._up_process = Part(command, self._data_dir / "logs", self._environment)
        self.addresses = self._up_process.wait_until_ready(time.monotonic() + START_TIMEOUT_S, lambda: False)
        self.settings = load_settings(environment=self._environment, working_dir=self._data_dir)
        detail(", ".join(f"{name} {self.addresses[name]}" for name in ("registry", "broker", "metastore")))

    def command(self, *arguments: str) -> RunnableCommand:
        return RunnableCommand(python_command("headrace", *arguments), python_environment(self._environment))

    def stop(self) -> None:
        if self._up_process is not None:
            self._up_process.stop(time.monotonic() + START_TIMEOUT_S)

    @contextmanager
    def engine(self, detail: PrintDetail) -> Iterator[RunQuery]:
        session = open_session(
            app_name="headrace demo",
            master=self.settings.spark["master"],
            metastore_uri=self.addresses["metastore"],
            data_dir=self._data_dir,
            warehouse_uri=local_location(Path(self.addresses["warehouse"])),
            extra={},
        )
        try:
            started = time.monotonic()
            self._read_tables(session)
            detail(f"read {count_text(len(self._tables), 'table')} in {time.monotonic() - started:.1f} s")
            yield lambda query: [tuple(row) for row in session.sql(query).collect()]
        finally:
            close_session(session)

    def _read_tables(self, session: SparkSession) -> None:
        """Caches every Hive table of the demo in memory, as a temporary view of the Spark session that all queries use.

        Spark plans at least one task per partition of a Hive table: hundreds of tasks per scan for a year of days,
        mostly overhead. Coalescing reduces that to one task per core. The files of one table are listed while another
        table is read.
        """

        def read(name: str) -> None:
            table = session.table(f"{self.settings.hive.database}.{name}")
            table.coalesce(os.cpu_count() or 1).cache().createOrReplaceTempView(name)
            session.table(name).count()

        with ThreadPoolExecutor(max_workers=len(self._tables)) as pool:
            list(pool.map(read, self._tables))

    def next_steps(self) -> Sequence[str]:
        data_dir = relative_path(self._data_dir)
        return (
            f'headrace sql --data-dir {data_dir} "{SAMPLE_QUERY}"',
            f"headrace load status --data-dir {data_dir}",
            f"headrace audit report --data-dir {data_dir}   (with `headrace up` running)",
            f"ls {data_dir}/warehouse/flights",
            f"headrace up --data-dir {data_dir}   (Ctrl-C stops it; console: http://127.0.0.1:8080/?{YEAR}&show=all)",
        )

    def console_url(self) -> str:
        return f"{self.addresses['console']}/?{YEAR}&show=all"


def relative_path(path: Path) -> str:
    """Returns a path relative to the current directory; a path outside of that directory is returned unchanged."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
