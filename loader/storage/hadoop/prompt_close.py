"""How soon HDFS's client asks again whether a file that it has closed is complete.

The last bytes are acknowledged before the NameNode has heard of the block from a DataNode, so its first question comes
too early as a rule. The client then waits 400 ms and doubles that, whatever the file: a load of a year, of hundreds
of small files and documents, waits for minutes. Hadoop has settings for it, whose waiting in all stays as long here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTINGS: Mapping[str, str] = {
    "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "10",  # by default 400
    "dfs.client.block.write.locateFollowingBlock.retries": "11",  # 20 s in all; by default 5, which are 12 s
}

DEFAULTS = "hdfs-default.xml"
"""Where Hadoop says that a value comes from that nobody has set; it names no source where its code has the value."""


def prompt_close(jvm: Any, configuration: Any) -> Mapping[str, str]:
    """The settings to close files promptly with; none where the cluster, or `[spark]`, has its own for one of them.

    Args:
        jvm: one with Hadoop's client.
        configuration: of Hadoop, as the cluster and `[spark]` make it.
    """
    jvm.org.apache.hadoop.hdfs.HdfsConfiguration.init()  # only then are hdfs-site.xml and the defaults in it
    sources = [configuration.getPropertySources(key) for key in SETTINGS]
    return SETTINGS if all(found is None or list(found) == [DEFAULTS] for found in sources) else {}
