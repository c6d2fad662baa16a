"""Shortens the interval at which HDFS's client checks that a closed file is complete.

The last bytes are acknowledged before a DataNode has reported the block to the NameNode, so the first check usually
comes too early. The client then waits 400 ms and doubles that, for every file: a load of a year with hundreds of small
files and documents waits for minutes. Hadoop has settings for this; the total waiting time stays as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTINGS: Mapping[str, str] = {
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",  # by default 400
    "dfs.client.block.write.locateFollowingBlock.retries": "11",  # 20 s in all; by default 5, which are 12 s
}

DEFAULTS = "hdfs-default.xml"
"""The source that Hadoop names for a default value; it names none if the default is in its code."""


def prompt_close(jvm: Any, configuration: Any) -> Mapping[str, str]:
    """Returns the settings to close files promptly; none if the cluster, or `[spark]`, sets one of them.

    Args:
        jvm: one with Hadoop's client.
        configuration: of Hadoop, from the cluster and `[spark]`.
    """
    jvm.org.apache.hadoop.hdfs.HdfsConfiguration.init()  # only then are hdfs-site.xml and the defaults in it
    sources = [configuration.getPropertySources(key) for key in SETTINGS]
    return SETTINGS if all(found is None or list(found) == [DEFAULTS] for found in sources) else {}
