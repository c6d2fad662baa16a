"""What a Java exception of a file system means, as the `OSError` that a local one would raise."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

CAUSES_MAX = 20  # chains are shorter; a cycle would never end
REASON_CHARS_MAX = 300  # NameNodes append what they know of the whole cluster

MEANINGS: tuple[tuple[str, int, str], ...] = (
    # what class names and messages of the chain hold; errno; what to say, "" for what Java says
    (r"SafeModeException|[Nn]ame node is in safe mode", errno.EROFS,
     "the NameNode is in safe mode and takes no changes (hdfs dfsadmin -safemode get); load again when it has left it"),
    (r"QuotaExceededException", errno.EDQUOT, ""),
    (r"could only be written to \d+ of the", errno.ENOSPC,
     "no DataNode takes another block: they are full, or none is alive (hdfs dfsadmin -report)"),
    (r"No space left on device", errno.ENOSPC, ""),
    # The store's answer 412 to a conditional create.
    (r"\bFileAlreadyExistsException|RemoteFileChangedException|\b412\b", errno.EEXIST, ""),
    (r"\bFileNotFoundException|\bNoSuchFileException", errno.ENOENT, ""),
    (r"\bAccessControlException|\bAccessDeniedException|\bAccessDenied\b", errno.EACCES, ""),
    (r"PathIsNotEmptyDirectoryException|is non empty", errno.ENOTEMPTY, ""),
    (r"Class org\.apache\.hadoop\.fs\.s3a\.\w+ not found", errno.ENOSYS,
     "Spark has no S3A; set spark.jars.packages to org.apache.hadoop:hadoop-aws of the release of Spark's own Hadoop"),
    (r"\b503\b|SlowDown|Slow Down|ThrottledException", errno.EBUSY, ""),
)  # fmt: skip
"""The first that fits."""


def failure(error: Py4JError, path: str) -> OSError:
    """The error to raise; its class is the one that goes with its number."""
    if not isinstance(error, Py4JJavaError):
        gone = isinstance(error, Py4JNetworkError)
        reason = "Spark's JVM has ended; see logs/spark.log in the data folder" if gone else _one_line(str(error))
        return OSError(errno.EPIPE if gone else errno.EIO, reason, path)
    chain = list(_chain(error.java_exception))
    text = "\n".join(f"{name}: {message}" for name, message in chain)
    reason = next((message for _, message in reversed(chain) if message), "no reason given")
    for pattern, number, saying in MEANINGS:
        if re.search(pattern, text):
            return OSError(number, saying or f"{os.strerror(number)}: {reason}", path)
    return OSError(errno.EIO, f"{chain[-1][0].rpartition('.')[2]}: {reason}", path)


def _chain(cause: object) -> Iterator[tuple[str, str]]:
    """Class name and message of an exception and its causes, from outside in."""
    for _ in range(CAUSES_MAX):
        yield str(cause.getClass().getName()), _one_line(cause.getMessage() or "")  # type: ignore[attr-defined]
        inner = cause.getCause()  # type: ignore[attr-defined]
        if inner is None or inner.equals(cause):
            return
        cause = inner


def _one_line(text: str) -> str:
    """The first line; those after it are a stack trace where the exception came over the wire."""
    lines = text.strip().splitlines()
    return " ".join(lines[0].split())[:REASON_CHARS_MAX] if lines else ""
