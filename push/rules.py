"""The rules of the client as pure functions over values: what to do with a file, with the position that a gateway
returns, and after a failed request."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

FINGERPRINT_BYTES = 256


@dataclass(frozen=True)
class Fingerprint:
    """CRC-32 of up to `FINGERPRINT_BYTES` bytes: the first ones (head) or those before a position (anchor)."""

    length: int = 0
    crc: int = 0


class FileAction(enum.Enum):
    """What to do with a found file."""

    WAIT = "wait"  # nothing to read yet, or a copy of a file that is still read itself
    BEGIN = "begin"  # a new source, from the beginning
    CONTINUE = "continue"  # the file of a known source
    RESTART = "restart"  # the file of a known source with replaced content: a new incarnation
    ADOPT = "adopt"  # the rest of a source after its own file was truncated or deleted


@dataclass(frozen=True)
class SeenFile:
    """A file that was found.

    Attributes:
        size: in bytes.
        is_compressed: its name ends in .gz; its content is the inflated one.
        known: whether the state has a source with the key of this file.
        known_position: that source's position.
        is_unchanged: whether head and anchor of that source match the file.
        copied: the position of the source that this file is a rotated copy of (equal head, equal anchor); None if no
            source matches.
        copied_is_read: whether that source's own file is still there to be read.
    """

    size: int
    is_compressed: bool = False
    known: bool = False
    known_position: int = 0
    is_unchanged: bool = True
    copied: Optional[int] = None
    copied_is_read: bool = False


def decide_file(seen: SeenFile) -> FileAction:
    """Returns what to do with a file."""
    if seen.known:
        if seen.is_compressed:
            return FileAction.CONTINUE
        if seen.size < seen.known_position or not seen.is_unchanged:
            return FileAction.RESTART
        return FileAction.CONTINUE
    if not seen.size:
        return FileAction.WAIT
    if seen.copied is not None:
        return FileAction.WAIT if seen.copied_is_read else FileAction.ADOPT
    return FileAction.BEGIN


class Resume(enum.Enum):
    """How to continue after a session was opened."""

    SEND = "send"  # send the chunks that are in memory
    SEEK = "seek"  # drop them, and read from the gateway's position
    RESTART = "restart"  # the gateway has more than the file: the file was replaced
    LOST = "lost"  # the gateway lost lines that the file has no more


def position_after_open(last_seqno: int, last_known: int, position: int) -> int:
    """Returns where a source continues after its session was opened.

    The gateway has less than it once confirmed: it lost lines in a power cut, and they are read again. It has more: the
    client stopped before it noted a confirmation. Otherwise the client's own position is the same or further, past
    bytes that are no records, such as NUL bytes and rejected lines.

    Args:
        last_seqno: the gateway's last seqno now.
        last_known: the last seqno that the gateway reported with an earlier response.
        position: the client's position at that response.
    """
    return last_seqno if last_seqno < last_known else max(last_seqno, position)


def decide_resume(position: int, first_begin: Optional[int], size: Optional[int]) -> Resume:
    """Returns how to continue a source after its session opened.

    Args:
        position: see `position_after_open`.
        first_begin: begin of the first chunk in memory; None without chunks.
        size: of the content; None if the content of this incarnation cannot be read again.
    """
    if first_begin is not None and position >= first_begin:
        return Resume.SEND  # the gateway skips the lines that it has
    if size is None:
        return Resume.LOST if first_begin is not None else Resume.SEND
    return Resume.RESTART if position > size else Resume.SEEK


class Answer(enum.Enum):
    """The meaning of a response for its source."""

    STORED = "stored"
    REOPEN = "reopen"  # the session ended: open it again
    MOVED = "moved"  # another gateway has the source
    OUTDATED = "outdated"  # the source has had a session that this client does not know
    FENCED = "fenced"  # a later session of the source exists: this client stops the source
    SMALLER = "smaller"  # the chunk is too large
    RETRY = "retry"  # wait, then send again
    CONFIGURE = "configure"  # wait as well; an operator has to change something


def read_answer(status: int, error_code: int) -> Answer:
    """Returns the meaning of a response by HTTP status and error code. No response drops lines: an error of
    configuration is retried until an operator repairs it."""
    if status == 200:
        return Answer.STORED
    if status in (307, 308):
        return Answer.MOVED
    if status == 412 and error_code == 41270:
        return Answer.OUTDATED
    if status == 409:
        return Answer.FENCED
    if status == 404 and error_code == 40470:
        return Answer.REOPEN
    if status == 413:
        return Answer.SMALLER
    if status in (400, 408, 429) or status >= 500:
        return Answer.RETRY
    return Answer.CONFIGURE


def retry_delay_s(failures: int, first_s: float, max_s: float, retry_after_s: Optional[float], random: float) -> float:
    """Returns the time until the next attempt: doubles with each failure, and a random half of it keeps a thousand
    clients apart. A Retry-After of the gateway is the least time.

    Args:
        failures: in a row, from 1.
        random: from [0, 1).
    """
    delay: float = min(max_s, first_s * 2.0 ** min(failures - 1, 30))
    return max(delay * (0.5 + random / 2), (retry_after_s or 0.0) * (1 + random / 4))


_DIGITS = "0123456789"
_SUFFIX_CHARACTERS = f"-._T{_DIGITS}"
_SUFFIX = r"[-._][0-9][-0-9._T]*"


def is_rotated_name(name: str, original: str) -> bool:
    """Whether logrotate may have given a file the name `name` that had the name `original`, or they are equal."""
    return original in original_names(name)


def original_names(name: str) -> set[str]:
    """Returns the names that a file may have had before logrotate gave it a name: `app.log` for `app.log.1`,
    `app.log-20260131`, `app-20260131.log` (its option `extension`) and `app.log.old`, each also with `.gz`. The name
    without `.gz` is one of them."""
    name = name[:-3] if name.endswith(".gz") else name
    stem, _, extension = name.rpartition(".")
    found = {name, *_without_suffix(name), *(f"{one}.{extension}" for one in _without_suffix(stem))}
    if extension in ("old", "bak"):
        found.add(stem)
    return found - {""}


def _without_suffix(text: str) -> Iterator[str]:
    """Yields a text without each date or number that is an end of it; one may contain another."""
    for at in range(len(text.rstrip(_SUFFIX_CHARACTERS)), len(text) - 1):
        if at and text[at] in "-._" and text[at + 1] in _DIGITS:
            yield text[:at]


def unrotated_name(name: str) -> str:
    """Returns the name of a file before logrotate renamed it, derived from its current name."""
    name = name[:-3] if name.endswith(".gz") else name
    found = re.fullmatch(rf"(.+?)(?:{_SUFFIX}|\.old|\.bak)(\.[A-Za-z]\w*)?", name)
    return found[1] + (found[2] or "") if found else name


@dataclass(frozen=True)
class CopyCandidate:
    """A source, compared with a file that may be its rotated copy.

    Attributes:
        name: the name of its file when it was first seen.
        mtime_s: the last known time of change of its file.
        file_is_present: its own file is still there, and holds this incarnation.
        is_renamed: its own file has another name than `name` by now.
        has_copy: a copy continues it already.
        was_truncated: its file holds another incarnation by now.
        is_older: its file was created before the other file, or the file system has no birth times.
    """

    name: str
    mtime_s: int
    file_is_present: bool = False
    is_renamed: bool = False
    has_copy: bool = False
    was_truncated: bool = False
    is_older: bool = True


def may_be_copy(name: str, mtime_s: int, candidate: CopyCandidate) -> bool:
    """Whether a file that no source knows may be a copy of a source, before contents are compared.

    A plain copy is made by copytruncate alone, so the source's file was truncated, or still has its first name because
    the truncation follows. Otherwise a file with equal content is another file: two days with the same single line are
    two days. A compressed copy has the time of change of the file that it replaces.
    """
    if name == candidate.name or not candidate.is_older:
        return False
    if name.endswith(".gz"):
        is_related = unrotated_name(name) == unrotated_name(candidate.name)
        return is_related and (mtime_s >= candidate.mtime_s or candidate.was_truncated)
    if not is_rotated_name(name, candidate.name):
        return False
    if candidate.was_truncated:
        return not candidate.has_copy
    return candidate.file_is_present and not candidate.is_renamed
