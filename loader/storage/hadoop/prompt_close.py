"""Shortens the interval at which HDFS's client checks that a closed file is complete.

A DataNode acknowledges the last bytes before it has reported the block to the NameNode, so the client's first check
usually comes too early. By default the client then waits 400 ms, and twice as long each further time, for every file:
the load of a year with hundreds of small files waits for minutes. Hadoop has settings for the first interval and the
number of checks; this module sets them so that the total waiting time is not shorter than before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTINGS: Mapping[str, str] = {
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",  # by default 400
    "dfs.client.block.write.locateFollowingBlock.retries": "11",  # 20 s in all; by default 5, which are 12 s
}

DEFAULTS = "hdfs-default.xml"
"""The source that Hadoop states for a setting whose value comes from its own default file. If the default is in
Hadoop's code, it states no source."""


def prompt_close(jvm: Any, configuration: Any) -> Mapping[str, str]:
    """Returns settings with which HDFS's client checks at short intervals whether a closed file is complete. Returns
    none if the cluster or the section `[spark]` already sets one of them.

    Args:
        jvm: a JVM with Hadoop's client.
        configuration: Hadoop's configuration, from the cluster and `[spark]`.
    """
    jvm.org.apache.hadoop.hdfs.HdfsConfiguration.init()  # only then are hdfs-site.xml and the defaults in it
    sources = [configuration.getPropertySources(key) for key in SETTINGS]
    return SETTINGS if all(found is None or list(found) == [DEFAULTS] for found in sources) else {}
