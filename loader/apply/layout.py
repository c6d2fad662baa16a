"""Directories of a topic's files in the warehouse.

<warehouse>/_headrace/                        staging, and the commit log unless loader.state is set
<warehouse>/<directory>/dt=…/hr=…/<file>      rows of a topic
<warehouse>/<directory>/_g3/dt=…/hr=…/<file>  rows of rewritten time partitions, by generation
<warehouse>/<directory>/_schema/              the schemas of its table
<warehouse>/_quarantine/<directory>/dt=…/…    its messages that could not be loaded
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.loader.work_unit import FileKind

QUARANTINE_DIRECTORY = "_quarantine"
QUARANTINE_DATABASE_SUFFIX = "_quarantine"
HIDDEN_PREFIXES = (".", "_")  # of names that Hive, Spark and Pig ignore

PARTITION_COLUMNS: Mapping[str, tuple[str, ...]] = {"hour": ("dt", "hr"), "day": ("dt",)}
"""The partition columns of Hive tables, by the setting `loader.partition_by`."""


def topic_directory(directory: str, kind: FileKind) -> str:
    """The directory of a topic's data files or of its quarantine files (`kind`), relative to the warehouse.

    Args:
        directory: the topic's directory name.
    """
    return f"{QUARANTINE_DIRECTORY}/{directory}" if kind is FileKind.QUARANTINE else directory


def time_partition_directory(directory: str, kind: FileKind, time_partition: str, generation: int) -> str:
    """The directory of a time partition's data files or quarantine files (`kind`), relative to the warehouse.

    Args:
        directory: the topic's directory name.
        generation: the generation of the time partition, 0 if it was never rewritten.
    """
    parts = (
        QUARANTINE_DIRECTORY if kind is FileKind.QUARANTINE else "",
        directory,
        f"_g{generation}" if generation else "",
    )
    return "/".join((*filter(None, parts), time_partition))


def partition_values(time_partition: str) -> tuple[str, ...]:
    """The values of the partition columns: `("2026-01-31", "07")` for `dt=2026-01-31/hr=07`."""
    return tuple(part.partition("=")[2] for part in time_partition.split("/"))
