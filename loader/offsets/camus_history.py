"""Reads the next offsets that LinkedIn's Camus had reached, from its history directory. Pure, except for reading files.

Each Camus run creates a directory, named by its time, in `etl.execution.history.path`. It has Hadoop sequence files
`offsets-…` whose keys are `EtlKey`: topic, partition, and the next offset. A run repeats the entries of partitions that
it did not read, so the newest directory is complete. Of two keys for one partition the greater offset counts, as in
Camus. Formats: Hadoop's SequenceFile, version 6, and Camus' `EtlKey.write`.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

MAGIC = b"SEQ\x06"
KEY_CLASS = "EtlKey"
FILES = "offsets*"
SYNC_BYTES = 16
RECORD_BYTES_MAX = 1024 * 1024  # a key has some hundred bytes
HEADER_TEXTS_MAX = 100


class CamusHistoryError(ValueError):
    """A directory has no offset files of LinkedIn's Camus, or a file is not one or is damaged. The message names the
    path and the reason."""


def next_offsets(history: Path) -> dict[str, dict[int, int]]:
    """Returns the next offsets that Camus had reached, by topic and partition.

    Args:
        history: a copy of Camus' history directory, with a subdirectory per run, or of the directory of one run.

    Raises:
        CamusHistoryError: there are no offset files, or one is damaged or is no offset file of Camus.
        OSError: a directory or file cannot be read.
    """
    offsets_by_topic: dict[str, dict[int, int]] = {}
    for path in _newest_run(history):
        with path.open("rb") as file:
            try:
                _read(file, offsets_by_topic)
            except (EOFError, ValueError) as error:
                raise CamusHistoryError(f"{path} is no offset file of Camus: {error}") from error
    return offsets_by_topic


def _newest_run(history: Path) -> list[Path]:
    """Returns the Camus offset files in the directory `history` itself, or in its newest subdirectory that has any. The
    names of the subdirectories sort by time."""
    subdirectories = sorted((path for path in history.iterdir() if path.is_dir()), reverse=True)
    for directory in (history, *subdirectories):
        files = sorted(path for path in directory.glob(FILES) if path.is_file())
        if files:
            return files
    raise CamusHistoryError(f"{history}: neither this directory nor its subdirectories have files {FILES}")


def _read(file: BinaryIO, offsets_by_topic: dict[str, dict[int, int]]) -> None:
    sync = _header(file)
    while head := file.read(4):
        length = _int(head)
        if length == -1:
            if _exactly(file, SYNC_BYTES) != sync:
                raise ValueError(f"the sync marker that ends at byte {file.tell()} is wrong")
            continue
        key_length = _int(_exactly(file, 4))
        if not 0 <= key_length <= length <= RECORD_BYTES_MAX:
            raise ValueError(
                f"the record at byte {file.tell() - 8} states a length of {length} bytes and a key of {key_length}; "
                f"expected 0 <= key <= length <= {RECORD_BYTES_MAX}"
            )
        topic, partition, offset = _key(_exactly(file, length)[:key_length])
        partitions = offsets_by_topic.setdefault(topic, {})
        partitions[partition] = max(offset, partitions.get(partition, 0))


def _header(file: BinaryIO) -> bytes:
    """Reads the header of a Camus offset file and returns the file's sync marker."""
    if _exactly(file, len(MAGIC)) != MAGIC:
        raise ValueError("the file does not begin with the header of a Hadoop sequence file of version 6")
    key_class, _ = _text(file), _text(file)
    if key_class.rpartition(".")[2] != KEY_CLASS:
        raise ValueError(f"the keys of the file are {key_class}, not Camus' {KEY_CLASS}")
    is_compressed, is_block_compressed = _exactly(file, 2)
    if is_block_compressed:
        raise ValueError("the keys are compressed in blocks; Camus writes io.seqfile.compression.type NONE or RECORD")
    if is_compressed:
        _text(file)  # the codec, which compresses the values only
    pairs = _int(_exactly(file, 4))
    if not 0 <= pairs <= HEADER_TEXTS_MAX:
        raise ValueError(f"the header states {pairs} properties; expected 0 to {HEADER_TEXTS_MAX}")
    for _ in range(2 * pairs):
        _text(file)
    return _exactly(file, SYNC_BYTES)


def _key(key: bytes) -> tuple[str, int, int]:
    """Decodes a key of a Camus offset file and returns topic, partition and next offset. A key has leader, partition,
    begin, offset, checksum, topic, and further fields."""
    leader_end = 2 + int.from_bytes(key[:2], "big")
    numbers = key[leader_end : leader_end + 28]
    topic_start = leader_end + 30
    topic = key[topic_start : topic_start + int.from_bytes(key[topic_start - 2 : topic_start], "big")]
    partition, offset = _int(numbers[:4]), _int(numbers[12:20])
    if len(numbers) < 28 or not topic or partition < 0 or offset < 0:
        raise ValueError(f"a key of {len(key)} bytes is no valid {KEY_CLASS}")
    return topic.decode("utf-8"), partition, offset


def _text(file: BinaryIO) -> str:
    length = _vint(file)
    if not 0 <= length <= RECORD_BYTES_MAX:
        raise ValueError(f"the header states a text of {length} bytes; expected 0 to {RECORD_BYTES_MAX}")
    return _exactly(file, length).decode("utf-8")


def _vint(file: BinaryIO) -> int:
    """Reads an integer as Hadoop's WritableUtils.readVInt: a first byte from -112 on is the value; a lower one encodes
    the sign and the number of bytes that follow."""
    first = int.from_bytes(_exactly(file, 1), "big", signed=True)
    if first >= -112:
        return first
    value = int.from_bytes(_exactly(file, -112 - first if first >= -120 else -120 - first), "big")
    return value if first >= -120 else ~value


def _int(content: bytes) -> int:
    return int.from_bytes(content, "big", signed=True)


def _exactly(file: BinaryIO, length: int) -> bytes:
    content = file.read(length)
    if len(content) < length:
        raise EOFError(f"the file is truncated: it ends within a record or header, at byte {file.tell()}")
    return content
