"""Pig 0.17 from Maven Central in local mode: one script per JVM."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from headrace.avro_schema import Array, Map, Primitive, PrimitiveType, Record, Schema, Type, Union
from support.hive.hive_server import OPENED_PACKAGES
from support.hive.hive_values import decimal_text, timestamp_text
from support.servers.maven_jars import classpath_of

SCRIPT_TIMEOUT_S = 180.0
WITHOUT_PRUNING = "SET pig.optimizer.rules.disabled 'ColumnMapKeyPrune';\n"
"""Makes Pig read all columns. Otherwise it passes only the used columns to Avro, without their aliases."""

METASTORE = "hive.metastore.uris"

LOGGING = """\
log4j.rootLogger=ERROR, err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%p %c{1}: %m%n
log4j.logger.org.apache.hadoop.mapred.LocalJobRunner=WARN, err
"""
REASON = re.compile(r"^Caused by: (?:[\w$]+\.)*(.*)$", re.MULTILINE)

# Pig generates names for tuples in bags and values in maps.
NAMELESS = re.compile(r"(\{|map\[)\w+: (?=\w*[({\[]|\w+\])")

AS_JSON = """\
import json
from array import array

@outputSchema("said:chararray")
def said(value):
    return json.dumps(plain(value))

def plain(value):
    if isinstance(value, array):
        return {"bytes": "".join("%02x" % (byte & 255) for byte in value)}
    if isinstance(value, tuple):
        return {"tuple": [plain(item) for item in value]}
    if isinstance(value, list):
        return {"bag": [plain(item) for item in value]}
    if isinstance(value, dict):
        return {"map": dict((key, plain(item)) for key, item in value.items())}
    if value is None or isinstance(value, (bool, int, long, float, unicode, str)):
        return value
    return {"java": value.getClass().getSimpleName(), "text": value.toString()}
"""
"""A Jython function for Pig that renders a value by its Java class, because Pig's own output is ambiguous."""


def by_schema(directory: Path) -> str:
    return f"'{directory}/dt=*/hr=*' USING AvroStorage('', '-f {directory}/_schema/current.avsc')"


def by_table(table: str) -> str:
    return f"'{table}' USING org.apache.hive.hcatalog.pig.HCatLoader()"


class PigRefused(Exception):
    """A script failed; the message is the reason."""


class Pig:
    """Runs Pig scripts.

    Args:
        directory: a new directory for the scripts and logs.
        jars: name of the pom with Pig's jars: `pig`, or `pig-hcat` for tables in a metastore of Hive 2.3.
    """

    def __init__(self, directory: Path, jars: str) -> None:
        directory.mkdir(parents=True)
        (directory / "log4j.properties").write_text(LOGGING, encoding="utf-8")
        self._directory = directory
        opened = [f"--add-opens={name}=ALL-UNNAMED" for name in OPENED_PACKAGES]
        self._command = [
            *("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC", *opened),
            *("-cp", f"{directory}:{classpath_of(jars)}", "org.apache.pig.Main", "-x", "local"),
            *("-4", "log4j.properties"),
        ]

    def read_columns(
        self, load: str, columns: Sequence[str], before: str = "", **properties: str
    ) -> tuple[dict[str, str], list[list[Any]]]:
        """Loads data with Pig. Returns the types of all columns by name, and the values of some columns of every row,
        in the form for `normalize_pig_value`.

        Args:
            load: the expression after LOAD.
            columns: the columns to return.
            before: statements at the start of the script.

        Raises:
            PigRefused: the job failed.
        """
        (self._directory / "as_json.py").write_text(AS_JSON, encoding="utf-8")
        script = (
            f"{before}REGISTER '{self._directory / 'as_json.py'}' USING jython AS shown;\n"
            f"t = LOAD {load};\nDESCRIBE t;\n"
            f"result = FOREACH t GENERATE shown.said(TOTUPLE({', '.join(columns)}));"
        )
        done = self._run(script, properties)
        if done.returncode != 0:
            raise PigRefused(([*REASON.findall(done.stderr), done.stderr[-3000:]])[0])
        described = next(line for line in done.stdout.splitlines() if line.startswith("t: {"))
        rows = [json.loads(line[1:-1])["tuple"] for line in done.stdout.splitlines() if line.startswith("(")]
        return dict(_members(described.removeprefix("t: {").removesuffix("}"))), rows

    def dump(self, script: str, **properties: str) -> list[str]:
        """Returns the sorted lines that the DUMP of a script prints; the script's relation is named `result`."""
        done = self._run(script, properties)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        return sorted(line for line in done.stdout.splitlines() if line.startswith("("))

    def _run(self, script: str, properties: dict[str, str]) -> subprocess.CompletedProcess[str]:
        path = self._directory / "script.pig"
        settings = "".join(f"SET {name} '{value}';\n" for name, value in properties.items())
        path.write_text(f"{settings}{script}\nDUMP result;\n", encoding="utf-8")
        return subprocess.run(
            [*self._command, str(path)],
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=SCRIPT_TIMEOUT_S,
            check=False,
        )


def _members(described: str) -> list[tuple[str, str]]:
    """Parses the output of Pig's DESCRIBE. Returns the name and type of each column."""
    parts, depth = [""], 0
    for sign in NAMELESS.sub(r"\1", described):
        depth += (sign in "({[") - (sign in ")}]")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [(name, kind) for name, _, kind in (part.partition(": ") for part in parts)]


def normalize_pig_value(schema: Schema, node: Type, pig_value: Any) -> Any:
    """Converts Pig's value of a column to the form of `hive_values.expected_value`."""
    node = schema.resolve(node)
    if pig_value is None:
        return None
    match node:
        case Union(branches=branches):
            (inner,) = (one for one in branches if one != Primitive(PrimitiveType.NULL))
            return normalize_pig_value(schema, inner, pig_value)
        case Record(fields=fields):
            members = zip(fields, pig_value["tuple"], strict=True)
            return {field.name.lower(): normalize_pig_value(schema, field.type, value) for field, value in members}
        case Array(items=items):
            # Items that are not records are wrapped in a tuple, because bags hold only tuples.
            own = [one if _is_record(schema, items) else one["tuple"][0] for one in pig_value["bag"]]
            return [normalize_pig_value(schema, items, one) for one in own]
        case Map(values=values):
            return {key: normalize_pig_value(schema, values, value) for key, value in pig_value["map"].items()}
        case Primitive() if isinstance(pig_value, dict) and "java" in pig_value:
            return _normalize_object(node, pig_value["java"], pig_value["text"])
    return pig_value["bytes"] if isinstance(pig_value, dict) else pig_value


def _normalize_object(node: Primitive, kind: str, text: str) -> str:
    if kind == "BigDecimal":
        return decimal_text(Decimal(text))
    assert kind == "DateTime"
    instant = datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")
    is_date = node.type is PrimitiveType.INT and instant.time() == datetime.time()
    return instant.date().isoformat() if is_date else timestamp_text(instant)


def _is_record(schema: Schema, node: Type) -> bool:
    node = schema.resolve(node)
    inner = node.branches if isinstance(node, Union) else (node,)
    return any(isinstance(schema.resolve(one), Record) for one in inner)
