"""Hive's metastore client in the session's JVM, and its Thrift values as plain Python values.

Reading a Thrift value costs one round trip to the JVM per field; serialized as JSON by Thrift it costs one in total.
The same applies to creating a value from JSON, where Thrift identifies fields by the numbers of Hive's IDL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

HADOOP_PREFIX = "spark.hadoop."

JavaObject = Any
"""An object in the JVM behind py4j; its members are resolved at run time."""

CHARS_PER_CALL_MAX: Final = 1_000_000
"""Approximate maximum size of the JSON text in one call. Partitions are passed in several calls, because the text of
each repeats the columns of its table, which may be thousands."""

# Field numbers of hive_metastore.thrift, the same in all its versions.
LOCATION: Final = "2"  # of StorageDescriptor
PARTITIONS: Final = "1"  # of PartitionListComposingSpec, a struct that contains only a list of partitions
VALUES, DATABASE, TABLE, CREATED, ACCESSED, DESCRIPTOR, PARAMETERS = map(str, range(1, 8))  # of Partition


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

    def partitions(
        self, table: JavaObject, partitions: Sequence[tuple[Sequence[str], str]], created_s: int
    ) -> JavaObject:
        """Returns a Java list of new partitions of a table.

        Args:
            table: the metastore's Thrift value of the table.
            partitions: the values and the location of each.
            created_s: their time of creation, in seconds since 1970.
        """
        descriptor = self._numbered.toString(table.getSd())
        known = {
            DATABASE: {"str": table.getDbName()},
            TABLE: {"str": table.getTableName()},
            CREATED: {"i32": created_s},
            ACCESSED: {"i32": created_s},
            PARAMETERS: {"map": ["str", "str", 0, {}]},
        }
        fields = json.loads(descriptor)
        made = self._lists()
        step = max(1, CHARS_PER_CALL_MAX // len(descriptor))
        for start in range(0, len(partitions), step):
            structs = [
                known
                | {
                    VALUES: {"lst": ["str", len(values), *values]},
                    DESCRIPTOR: {"rec": {**fields, LOCATION: {"str": location}}},
                }
                for values, location in partitions[start : start + step]
            ]
            part = self._lists_of_partitions()
            fields_of_list = {PARTITIONS: {"lst": ["rec", len(structs), *structs]}}
            # Thrift's parser accepts no blanks
            text = json.dumps(fields_of_list, ensure_ascii=False, separators=(",", ":"))
            self._read.deserialize(part, text, "UTF-8")
            made.addAll(part.getPartitions())
        return made
