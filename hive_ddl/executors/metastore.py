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


def thrift_json(jvm: JavaObject, value: JavaObject) -> dict[str, Any]:
    """A thrift struct as nested dicts and lists, by its field names; unset fields are left out."""
    protocol = jvm.org.apache.thrift.protocol.TSimpleJSONProtocol.Factory()
    decoded = json.loads(jvm.org.apache.thrift.TSerializer(protocol).toString(value))
    assert isinstance(decoded, dict)
    return decoded


def java_strings(jvm: JavaObject, items: Iterable[str]) -> JavaObject:
    """A Java list of texts that hold no line break and are not empty."""
    return jvm.org.apache.hadoop.util.StringUtils.getStringCollection("\n".join(items), "\n")


def java_partitions(
    jvm: JavaObject, table: JavaObject, partitions: Sequence[tuple[Sequence[str], str]], created_s: int
) -> JavaObject:
    """A Java list of partitions of a thrift table, made of their values and locations."""
    thrift = jvm.org.apache.thrift
    protocol = thrift.protocol.TJSONProtocol.Factory()
    descriptor = thrift.TSerializer(protocol).toString(table.getSd())
    known = {
        DATABASE: {"str": table.getDbName()},
        TABLE: {"str": table.getTableName()},
        CREATED: {"i32": created_s},
        ACCESSED: {"i32": created_s},
        PARAMETERS: {"map": ["str", "str", 0, {}]},
    }
    fields = json.loads(descriptor)
    made = jvm.java.util.ArrayList()
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
        part = jvm.org.apache.hadoop.hive.metastore.api.PartitionListComposingSpec()
        fields_of_list = {PARTITIONS: {"lst": ["rec", len(structs), *structs]}}
        text = json.dumps(fields_of_list, ensure_ascii=False, separators=(",", ":"))  # thrift reads no blanks
        thrift.TDeserializer(protocol).deserialize(part, text, "UTF-8")
        made.addAll(part.getPartitions())
    return made
