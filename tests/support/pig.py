"""Pig 0.17 from Maven Central, in local mode: a script at a time, each in a JVM of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hive_server import OPENED
from maven_jars import classpath_of

SCRIPT_TIMEOUT_S = 180.0
LOGGING = """\
log4j.rootLogger=ERROR, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%p %c{1}: %m%n
"""


class Pig:
    """`jars` is `pig`, or `pig-hcat` for tables of a metastore of Hive 2.3."""

    def __init__(self, folder: Path, jars: str) -> None:
        folder.mkdir(parents=True)
        (folder / "log4j.properties").write_text(LOGGING, encoding="utf-8")
        self._folder = folder
        opened = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENED]
        self._command = [
            *("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", *opened),
            *("-cp", f"{folder}:{classpath_of(jars)}", "org.apache.pig.Main", "-x", "local"),
            *("-4", "log4j.properties"),
        ]

    def dump(self, script: str, **properties: str) -> list[str]:
        """The lines that the DUMP of a script prints, sorted; the script's relation is called `result`."""
        path = self._folder / "script.pig"
        settings = "".join(f"SET {name} '{value}';\n" for name, value in properties.items())
        path.write_text(f"{settings}{script}\nDUMP result;\n", encoding="utf-8")
        done = subprocess.run(
            [*self._command, str(path)],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=SCRIPT_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return sorted(line for line in done.stdout.splitlines() if line.startswith("("))
