"""Hive's own metastore client in the session's JVM, and its thrift values as plain Python ones.

A thrift value read field by field costs a round trip to the JVM for each; written as JSON by thrift itself it costs
one for the whole. So does one that is made from JSON, in which thrift calls fields by the numbers of Hive's IDL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession

HADOOP_PREFIX = "spark.hadoop."

JavaObject = Any
"""An object in the JVM behind py4j, whose members are found at run time."""

CHARS_PER_CALL_MAX: Final = 1_000_000
"""Of JSON. Each partition repeats the columns of its table, of which there may be thousands."""

# Numbers of fields in hive_metastore.thrift, the same in all its versions.
LOCATION: Final = "2"  # of StorageDescriptor
PARTITIONS: Final = "1"  # of PartitionListComposingSpec, which is a list of partitions and nothing else
VALUES, DATABASE, TABLE, CREATED, ACCESSED, DESCRIPTOR, PARAMETERS = map(str, range(1, 8))  # of Partition


def hive_conf(session: SparkSession) -> JavaObject:
    """Hive's configuration as the session has it, with the metastore's address or Derby URL."""
    jvm = session._jvm
    hadoop = session._jsc.hadoopConfiguration()
    name = "org.apache.hadoop.hive.conf.HiveConf"
    return jvm.org.apache.hadoop.hive.conf.HiveConf(hadoop, jvm.java.lang.Class.forName(name))


def hive_conf_of(jvm: JavaObject, properties: Mapping[str, str]) -> JavaObject:
    """The same in a JVM without Spark, from the Spark properties that a session would have."""
    hadoop = jvm.org.apache.hadoop.conf.Configuration()
    for key, value in properties.items():
        if key.startswith(HADOOP_PREFIX):
            hadoop.set(key.removeprefix(HADOOP_PREFIX), value)
    name = "org.apache.hadoop.hive.conf.HiveConf"
    return jvm.org.apache.hadoop.hive.conf.HiveConf(hadoop, jvm.java.lang.Class.forName(name))


def new_client(session: SparkSession) -> JavaObject:
    """A connected HiveMetaStoreClient; not for use from several threads."""
    jvm = session._jvm
    return jvm.org.apache.hadoop.hive.metastore.HiveMetaStoreClient(hive_conf(session))


class ThriftValues:
    """Thrift's values as JSON and out of it, in one JVM; not for use from several threads.

    Finding a class takes a round trip for each part of its name, so all are found once.
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

    def json(self, value: JavaObject) -> dict[str, Any]:
        """A struct as nested dicts and lists, by its field names; unset fields are left out."""
        decoded = json.loads(self._named.toString(value))
        assert isinstance(decoded, dict)
        return decoded

    def texts(self, items: Iterable[str]) -> JavaObject:
        """A Java list of texts that hold no line break and are not empty."""
        return self._texts.getStringCollection("\n".join(items), "\n")

    def partitions_json(self, partitions: JavaObject) -> Sequence[dict[str, Any]]:
        """A Java list of partitions, each as `json` has it."""
        partition_list = self._lists_of_partitions()
        partition_list.setPartitions(partitions)
        found: Sequence[dict[str, Any]] = self.json(partition_list).get("partitions", ())
        return found

    def partitions(
        self, table: JavaObject, partitions: Sequence[tuple[Sequence[str], str]], created_s: int
    ) -> JavaObject:
        """A Java list of partitions of a table, made of their values and locations."""
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
            text = json.dumps(fields_of_list, ensure_ascii=False, separators=(",", ":"))  # thrift reads no blanks
            self._read.deserialize(part, text, "UTF-8")
            made.addAll(part.getPartitions())
        return made
