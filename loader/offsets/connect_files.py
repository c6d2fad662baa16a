"""Derives next offsets from the file names of Kafka Connect. Pure, except for listing a directory.

The HDFS sink names a file `topic+partition+start+end.ext`, both inclusive, so the next offset is one after the greatest
end. The S3 sink names only the first offset, `topic+partition+start.ext`, so the end of the newest file is unknown:
loading begins with that file's first offset, and its messages are read again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_NAME = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)\+(?P<partition>\d+)\+(?P<start>\d+)(?:\+(?P<end>\d+))?(?:\.[\w.]+)?")


def next_offsets(names: Iterable[str]) -> dict[str, dict[int, int]]:
    """Returns the next offset by topic and partition, from names of files that Kafka Connect wrote:
    `topic+partition+start+end.ext` or `topic+partition+start.ext`. Ignores other names."""
    offsets_by_topic: dict[str, dict[int, int]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        after = int(match["start"]) if match["end"] is None else int(match["end"]) + 1
        partitions = offsets_by_topic.setdefault(match["topic"], {})
        partition = int(match["partition"])
        partitions[partition] = max(after, partitions.get(partition, 0))
    return offsets_by_topic


def names_below(directory: Path) -> Iterator[str]:
    """Returns the names of all files below a directory.

    Raises:
        OSError: a directory cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    for _, _, names in os.walk(directory, onerror=fail):
        yield from names


def names_in_listing(lines: Iterable[str]) -> Iterator[str]:
    """Returns the names of files and directories, without their paths, in a listing as printed by `hdfs dfs -ls -R` or
    `aws s3 ls --recursive`."""
    for line in lines:
        words = line.split()
        if words:
            yield words[-1].rpartition("/")[2]
