"""Hive's metastore client in the session's JVM, and its Thrift values as plain Python values.

Reading a Thrift value costs one round trip to the JVM per field; serialized as JSON by Thrift it costs one in total.
The same applies to creating a value from JSON, where Thrift identifies fields by the numbers of Hive's IDL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

from headrace.hive_ddl.table import PARTITION_COMMENTS, TableState

HADOOP_PREFIX = "spark.hadoop."

JavaObject = Any
"""An object in the JVM behind py4j; its members are resolved at run time."""

CHARS_PER_CALL_MAX: Final = 1_000_000
"""Approximate maximum size of the JSON text in one call. Partitions are passed in several calls, because the text of
each repeats the columns of its table, which may be thousands."""

AVRO_SERDE = "org.apache.hadoop.hive.serde2.avro.AvroSerDe"
AVRO_INPUT = "org.apache.hadoop.hive.ql.io.avro.AvroContainerInputFormat"
AVRO_OUTPUT = "org.apache.hadoop.hive.ql.io.avro.AvroContainerOutputFormat"

# Field numbers of hive_metastore.thrift, the same in all its versions.
LOCATION: Final = "2"  # of StorageDescriptor
PARTITIONS: Final = "1"  # of PartitionListComposingSpec, a struct that contains only a list of partitions
VALUES, DATABASE, TABLE, CREATED, ACCESSED, DESCRIPTOR, PARAMETERS = map(str, range(1, 8))  # of Partition

JsonValue = dict[str, Any]
"""A value with its type in the JSON of Thrift, such as `{"i32": 1}`."""


def hive_conf(session: SparkSession) -> JavaObject:
    """Returns the session's Hive configuration with the metastore's address or Derby URL."""
    jvm = session._jvm
    hadoop = session._jsc.hadoopConfiguration()
    name = "org.apache.hadoop.hive.conf.HiveConf"
    return jvm.org.apache.hadoop.hive.conf.HiveConf(hadoop, jvm.java.lang.Class.forName(name))


def hive_conf_of(jvm: JavaObject, properties: Mapping[str, str]) -> JavaObject:
    """Returns the Hive configuration for a JVM without Spark, from the Spark properties of a session."""
    hadoop = jvm.org.apache.hadoop.conf.Configuration()
    for key, value in properties.items():
        if key.startswith(HADOOP_PREFIX):
            hadoop.set(key.removeprefix(HADOOP_PREFIX), value)
    name = "org.apache.hadoop.hive.conf.HiveConf"
    return jvm.org.apache.hadoop.hive.conf.HiveConf(hadoop, jvm.java.lang.Class.forName(name))


def new_client(session: SparkSession) -> JavaObject:
    """Returns a HiveMetaStoreClient, connected to the metastore of a Spark session; not thread-safe."""
    jvm = session._jvm
    return jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(hive_conf(session))


def _text(value: str) -> JsonValue:
    return {"str": value}


def _structs(items: Sequence[Mapping[str, JsonValue]]) -> JsonValue:
    return {"lst": ["rec", len(items), *items]}


def _texts(items: Sequence[str]) -> JsonValue:
    return {"lst": ["str", len(items), *items]}


def _map(items: Mapping[str, str]) -> JsonValue:
    return {"map": ["str", "str", len(items), dict(items)]}


def _field(name: str, hive_type: str, comment: str | None) -> dict[str, JsonValue]:
    """Returns a FieldSchema."""
    return {"1": _text(name), "2": _text(hive_type), **({"3": _text(comment)} if comment else {})}


def _compact(value: Mapping[str, JsonValue]) -> str:
    # Thrift's parser accepts no blanks
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def avro_descriptor(table: TableState) -> str:
    """Returns the StorageDescriptor of a table with Avro files, as JSON of Thrift."""
    serde = {"1": _text(table.name), "2": _text(AVRO_SERDE), "3": _map({"serialization.format": "1"})}
    return _compact(
        {
            "1": _structs([_field(column.name, column.type, column.comment) for column in table.columns]),
            LOCATION: _text(table.location),
            "3": _text(AVRO_INPUT),
            "4": _text(AVRO_OUTPUT),
            "6": {"i32": -1},  # no buckets
            "7": {"rec": serde},
            "8": _texts(()),
            "9": _structs(()),
            "10": _map({}),
        }
    )


class ThriftValues:
    """Converts Thrift values from and to JSON in one JVM; not thread-safe.

    Resolving a class takes one round trip per part of its name, so all classes are resolved once.
    """

    def __init__(self, jvm: JavaObject) -> None:
        thrift = jvm.org.apache.thrift
        by_number = thrift.protocol.TJSONProtocol.Factory()
        self._named = thrift.TSerializer(thrift.protocol.TSimpleJSONProtocol.Factory())
        self._numbered = thrift.TSerializer(by_number)
        self._read = thrift.TDeserializer(by_number)
        self._lists = jvm.java.util.ArrayList
        self._texts = jvm.org.apache.hadoop.util.StringUtils
        self._lists_of_partitions = jvm.org.apache.hadoop.hive.metastore.api.PartitionListComposingSpec
        self._lists_of_tables = jvm.org.apache.hadoop.hive.metastore.api.GetTablesResult
        self._tables = jvm.org.apache.hadoop.hive.metastore.api.Table

    def json(self, value: JavaObject) -> dict[str, Any]:
        """Returns a Thrift struct as nested dicts and lists by field name; unset fields are omitted."""
        decoded = json.loads(self._named.toString(value))
        assert isinstance(decoded, dict)
        return decoded

    def texts(self, items: Iterable[str]) -> JavaObject:
        """Returns a Java list of these texts. No text may be empty or contain a line break."""
        return self._texts.getStringCollection("\n".join(items), "\n")

    def tables_json(self, tables: JavaObject) -> Sequence[dict[str, Any]]:
        """Converts a Java list of tables to nested dicts and lists by field name; unset fields are omitted."""
        found: Sequence[dict[str, Any]] = self.json(self._lists_of_tables(tables)).get("tables", ())
        return found

    def partitions_json(self, partitions: JavaObject) -> Sequence[dict[str, Any]]:
        """Converts a Java list of partitions to nested dicts and lists by field name; unset fields are omitted."""
        partition_list = self._lists_of_partitions()
        partition_list.setPartitions(partitions)
        found: Sequence[dict[str, Any]] = self.json(partition_list).get("partitions", ())
        return found

    def descriptor(self, table: JavaObject) -> str:
        """Returns the StorageDescriptor of a table, as JSON of Thrift."""
        return str(self._numbered.toString(table.getSd()))

    def table(self, table: TableState, descriptor: str, *, owner: str, created_s: int) -> JavaObject:
        """Returns a new external table.

        Args:
            descriptor: its StorageDescriptor, as JSON of Thrift.
            created_s: its time of creation, in seconds since 1970.
        """
        keys = [_field(name, "string", PARTITION_COMMENTS.get(name)) for name in table.partition_columns]
        made = self._tables()
        text = _compact(
            {
                "1": _text(table.name),
                "2": _text(table.database),
                "3": _text(owner),
                "4": {"i32": created_s},
                "7": {"rec": json.loads(descriptor)},
                "8": _structs(keys),
                "9": _map({**table.properties, "EXTERNAL": "TRUE"}),
                "12": _text("EXTERNAL_TABLE"),
            }
        )
        self._read.deserialize(made, text, "UTF-8")
        return made

    def partitions(
        self,
        database: str,
        name: str,
        descriptor: str,
        partitions: Sequence[tuple[Sequence[str], str]],
        created_s: int,
    ) -> JavaObject:
        """Returns a Java list of new partitions of a table.

        Args:
            database: the database of the table.
            name: the name of the table.
            descriptor: the StorageDescriptor of the table, as JSON of Thrift.
            partitions: the values and the location of each.
            created_s: their time of creation, in seconds since 1970.
        """
        known = {
            DATABASE: _text(database),
            TABLE: _text(name),
            CREATED: {"i32": created_s},
            ACCESSED: {"i32": created_s},
            PARAMETERS: _map({}),
        }
        fields = json.loads(descriptor)
        made = self._lists()
        step = max(1, CHARS_PER_CALL_MAX // len(descriptor))
        for start in range(0, len(partitions), step):
            structs = [
                known | {VALUES: _texts(values), DESCRIPTOR: {"rec": {**fields, LOCATION: _text(location)}}}
                for values, location in partitions[start : start + step]
            ]
            part = self._lists_of_partitions()
            self._read.deserialize(part, _compact({PARTITIONS: _structs(structs)}), "UTF-8")
            made.addAll(part.getPartitions())
        return made
