"""What a Java exception of a file system means, as the `OSError` that a local one would raise.

Messages hold paths, and topics and warehouses may be called anything: `http-412`, `AccessDenied`. So an exception is
known by its class, and by what it says only where the class leaves it open, in words that stand where no path can put
them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from headrace.loader.errors import StorageUnavailable

CAUSES_MAX = 20  # chains are shorter; a cycle would never end
REASON_CHARS_MAX = 300  # NameNodes append what they know of the whole cluster

REMOTE_EXCEPTION: Final = "org.apache.hadoop.ipc.RemoteException"
ILLEGAL_ARGUMENT: Final = "java.lang.IllegalArgumentException"
OF_SDK: Final = r"software\.amazon\.awssdk\..*"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What it means that one exception of the chain is of these classes and says this text.

    Args:
        classes: a pattern of the whole name, with its package.
        number: of the error.
        saying: what to say; "" for what Java says.
        text: a pattern of what the same exception says; "" for whatever it says.
        is_outage: whether the storage does so whatever path it is asked for.
    """

    classes: str
    number: int
    saying: str = ""
    text: str = ""
    is_outage: bool = False


def _named(*names: str) -> str:
    """The pattern of classes with these names, of whatever package, since Hadoop has moved some."""
    return rf"(?:.*[.$])?(?:{'|'.join(names)})"


def _answered(status: str) -> str:
    """The pattern of an answer with such a status as the SDK tells it: after what the store says, keys and all."""
    return rf"\(Service: \w+, Status Code: (?:{status})\b(?!.*\(Service: )"


SAFE_MODE = (
    "the NameNode is in safe mode and takes no changes (hdfs dfsadmin -safemode get); load again when it has left it"
)
NO_DATA_NODE = "no DataNode takes another block: they are full, or none is alive (hdfs dfsadmin -report)"
NO_S3A = (
    "Spark has no S3A; set spark.jars.packages to org.apache.hadoop:hadoop-aws of the release of Spark's own Hadoop"
)
EXPIRED = "the credentials of the bucket have expired; renew them, then load again"
NO_REASON = (
    "the bucket answers 400 and no reason: mostly the credentials have expired, or fs.s3a.endpoint.region is not the "
    "bucket's; see to them, then load again"
)

MEANINGS: tuple[Meaning, ...] = (
    # The RPC client begins so where it got no answer (`NetUtils.wrapException`).
    Meaning(".*", errno.EIO, is_outage=True, text=(
        r"^(?:Call From |No Route to Host from |Invalid host name: local host is|DestHost:destPort "
        r"|End of File Exception between local host is)")),
    Meaning(_named("SafeModeException"), errno.EROFS, SAFE_MODE, is_outage=True),
    Meaning(_named(r"\w*Quota\w*ExceededException"), errno.EDQUOT),
    Meaning(r"java\.io\.IOException", errno.ENOSPC, NO_DATA_NODE, r"^File /.* could only be written to \d+ of the "),
    # Of a local disk on the way: from what writes, what opens a file to write it, and what chooses a directory for it.
    Meaning(r"java\.io\.IOException", errno.ENOSPC, text=r"^No space left on device$"),
    Meaning(r"java\.io\.FileNotFoundException", errno.ENOSPC, text=r"^/.* \(No space left on device\)$"),
    Meaning(_named("DiskErrorException"), errno.ENOSPC, text=r"^No space available in any of the local directories"),
    Meaning(_named("FileAlreadyExistsException", "RemoteFileChangedException"), errno.EEXIST),
    # The store's answer to a conditional create.
    Meaning(OF_SDK, errno.EEXIST, text=_answered("412")),
    Meaning(_named("FileNotFoundException", "NoSuchFileException"), errno.ENOENT),
    Meaning(_named("AccessControlException", "AccessDeniedException"), errno.EACCES),
    Meaning(OF_SDK, errno.EACCES, text=_answered("401|403")),
    Meaning(OF_SDK, errno.EPERM, EXPIRED, r"^The provided token has expired", is_outage=True),
    # What a HEAD asks is answered without a body, and S3A mostly asks that first.
    Meaning(OF_SDK, errno.EPERM, NO_REASON, r"^(?:Bad Request|null) \(Service: \w+, Status Code: 400", is_outage=True),
    Meaning(_named("PathIsNotEmptyDirectoryException"), errno.ENOTEMPTY),
    Meaning(_named("ClassNotFoundException"), errno.ENOSYS, NO_S3A, r"^Class org\.apache\.hadoop\.fs\.s3a\."),
    Meaning(_named("AWSServiceThrottledException"), errno.EBUSY, is_outage=True),
    Meaning(OF_SDK, errno.EBUSY, text=_answered("503"), is_outage=True),
    Meaning(OF_SDK, errno.EIO, text=r"^Unable to execute HTTP request: ", is_outage=True),
    # S3A tells these in place of the SDK's own.
    Meaning(_named("HttpChannelEOFException", "AWSApiCallTimeoutException", "AWSNoResponseException"), errno.EIO,
            is_outage=True),
    Meaning(_named("UnknownHostException", "StandbyException"), errno.EIO, is_outage=True),
)  # fmt: skip
"""The first that fits any exception of the chain."""


def failure(error: Py4JError, path: str) -> OSError:
    """The error to raise; its class is the one that goes with its number, or `StorageUnavailable`."""
    if isinstance(error, Py4JNetworkError):
        return StorageUnavailable(errno.EPIPE, "Spark's JVM has ended; see logs/spark.log in the data directory", path)
    if not isinstance(error, Py4JJavaError):
        return OSError(errno.EIO, _cut(_one_line(str(error))), path)
    chain = list(_chain(error.java_exception))
    reason = _cut(next((message for _, message in reversed(chain) if message), "no reason given"))
    told = f"{re.split('[.$]', chain[-1][0])[-1]}: {reason}"
    meaning = next((one for one in MEANINGS if any(_fits(one, *thrown) for thrown in chain)), None)
    if meaning is None:
        return OSError(errno.EIO, told, path)
    if meaning.number != errno.EIO:
        told = meaning.saying or f"{os.strerror(meaning.number)}: {reason}"
    return (StorageUnavailable if meaning.is_outage else OSError)(meaning.number, told, path)


def is_refused_option(error: Py4JError, option: str) -> bool:
    """Whether what failed is a builder of Hadoop that does not know an option which it must heed."""
    if not isinstance(error, Py4JJavaError):
        return False
    return any(name == ILLEGAL_ARGUMENT and option in message for name, message in _chain(error.java_exception))


def _fits(meaning: Meaning, name: str, message: str) -> bool:
    return bool(re.fullmatch(meaning.classes, name) and re.search(meaning.text, message))


def _chain(cause: object) -> Iterator[tuple[str, str]]:
    """Class name and first line of what it says of an exception and its causes, from outside in."""
    for _ in range(CAUSES_MAX):
        name = str(cause.getClass().getName())  # type: ignore[attr-defined]
        if name == REMOTE_EXCEPTION:
            name = str(cause.getClassName())  # type: ignore[attr-defined]  # as it was at the other end
        message = _one_line(cause.getMessage() or "")  # type: ignore[attr-defined]
        yield name, message
        # One that came over the wire has lost its causes, and begins with what it was made of: a NameNode that starts
        # up in safe mode says so inside a RetriableException.
        inside = re.match(r"((?:\w+\.)+\w+(?:Exception|Error)): (.*)", message)
        if inside:
            yield inside[1], inside[2]
        inner = cause.getCause()  # type: ignore[attr-defined]
        if inner is None or inner.equals(cause):
            return
        cause = inner


def _one_line(text: str) -> str:
    """The first line; those after it are a stack trace where the exception came over the wire."""
    lines = text.strip().splitlines()
    return " ".join(lines[0].split()) if lines else ""


def _cut(reason: str) -> str:
    return reason[:REASON_CHARS_MAX]
