"""Hive's own metastore client in the session's JVM, and its thrift values as plain Python ones.

A thrift value read field by field costs a round trip to the JVM for each; written as JSON by thrift itself it costs
one for the whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

HADOOP_PREFIX = "spark.hadoop."

JavaObject = Any
"""An object in the JVM behind py4j, whose members are found at run time."""


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
