"""Kafka's checkpoint files. Each stores one kind of offset by partition; not every partition has a row.

Text format: a line with the version 0, a line with the row count, then one line `topic partition offset` per partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headrace.broker.errors import CorruptFile
from headrace.broker.log.files import write_atomically

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEAN_TO = "cleaner-offset-checkpoint"

PartitionKey = tuple[str, int]


def write_checkpoint(path: Path, offsets: Mapping[PartitionKey, int]) -> None:
    write_atomically(path, checkpoint_content(offsets))


def checkpoint_content(offsets: Mapping[PartitionKey, int]) -> bytes:
    lines = ["0", str(len(offsets)), *(f"{topic} {index} {offset}" for (topic, index), offset in offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def read_checkpoint(path: Path) -> dict[PartitionKey, int]:
    """Returns the offsets in a checkpoint file by partition; an empty mapping if the file does not exist.

    Raises:
        CorruptFile: the file is not a checkpoint.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise CorruptFile(path, "it is not UTF-8 text") from error
    try:
        if int(lines[0]) != 0:
            raise CorruptFile(path, f"the first line must be the version 0, not {lines[0]}")
        rows = [line.split(" ") for line in lines[2:] if line]
        offsets = {(topic, int(index)): int(offset) for topic, index, offset in rows}
        if len(offsets) != int(lines[1]):
            raise CorruptFile(path, f"the second line states {lines[1]} rows, but {len(offsets)} rows follow")
    except (ValueError, IndexError) as error:
        raise CorruptFile(path, "expected a version, a number of rows, and rows of `topic partition offset`") from error
    return offsets
