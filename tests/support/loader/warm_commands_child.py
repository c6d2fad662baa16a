"""The child process of `support.loader.warm_commands`: runs commands of `headrace` and reuses the Spark session.

Each line of standard input is a JSON object with the `words` of a command and the `now_ms` of its clock, null for the
clock of the system. Each line of standard output is a JSON object with the exit code, standard output and standard
error of the command. `headrace.cli.main` runs each command as in a separate process, with one difference: as in
`headrace load serve`, loads and rewrites share a session.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.cli import main
from headrace.pipeline import load
from headrace.pipeline.load_session import LoadSession
from headrace.settings import Settings
from headrace.settings.addresses import resolve_metastore

SYSTEM_CLOCK = load.now_ms


class SharedSession(LoadSession):
    """The Spark session that all commands share. If a command needs another metastore, or the session was opened
    without one, it is replaced."""

    def __init__(self) -> None:
        super().__init__(outlives_load=True)
        self._metastore: str | None = None

    def with_metastore(self, settings: Settings, *, is_use: bool = True) -> SparkSession:
        metastore = resolve_metastore(settings)
        if self.is_open and (metastore != self._metastore or not self.is_alive):
            self.close()
        self._metastore = metastore
        return super().with_metastore(settings, is_use=is_use)


def run(words: list[str], now_ms: int | None) -> dict[str, Any]:
    load.now_ms = SYSTEM_CLOCK if now_ms is None else lambda: now_ms  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="headrace-command-") as directory:
        outputs = [Path(directory, name) for name in ("stdout", "stderr")]
        for number, path in enumerate(outputs, 1):
            with path.open("wb") as file:
                os.dup2(file.fileno(), number)
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 2
        sys.stdout.flush()
        sys.stderr.flush()
        stdout, stderr = (path.read_text(encoding="utf-8") for path in outputs)
    return {"code": code, "stdout": stdout, "stderr": stderr}


def serve() -> None:
    with os.fdopen(os.dup(0), encoding="utf-8") as requests, os.fdopen(os.dup(1), "w", encoding="utf-8") as responses:
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        session = SharedSession()
        load.LoadSession = lambda: session  # type: ignore[assignment,misc]
        try:
            for line in requests:
                print(json.dumps(run(**json.loads(line))), file=responses, flush=True)
        finally:
            session.close()


if __name__ == "__main__":
    serve()
