"""Where a topic's files lie in the warehouse.

<warehouse>/_headrace/                      the decision log
<warehouse>/<folder>/dt=…/hr=…/<file>       rows of a topic
<warehouse>/<folder>/_g3/dt=…/hr=…/<file>   the same of buckets that were rewritten, by generation
<warehouse>/<folder>/_schema/               its load schemas
<warehouse>/_quarantine/<folder>/dt=…/…     messages of it that could not be loaded
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.loader.work_unit import FileKind

QUARANTINE_FOLDER = "_quarantine"
QUARANTINE_DATABASE_SUFFIX = "_quarantine"

PARTITION_COLUMNS: Mapping[str, tuple[str, ...]] = {"hour": ("dt", "hr"), "day": ("dt",)}
"""By the setting `loader.partition_by`."""


def topic_folder(folder: str, kind: FileKind) -> str:
    """Below the warehouse."""
    return f"{QUARANTINE_FOLDER}/{folder}" if kind is FileKind.QUARANTINE else folder


def bucket_folder(folder: str, kind: FileKind, bucket: str, generation: int) -> str:
    """Where the files of a bucket are, below the warehouse.

    Args:
        folder: the topic's.
        generation: of the bucket, 0 where it was never rewritten.
    """
    parts = (QUARANTINE_FOLDER if kind is FileKind.QUARANTINE else "", folder, f"_g{generation}" if generation else "")
    return "/".join((*filter(None, parts), bucket))


def partition_values(bucket: str) -> tuple[str, ...]:
    """The values of the partition columns, `("2026-01-31", "07")` for `dt=2026-01-31/hr=07`."""
    return tuple(part.partition("=")[2] for part in bucket.split("/"))
