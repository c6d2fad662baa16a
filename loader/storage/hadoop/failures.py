"""Maps a Java exception of a file system to the `OSError` that a local file system would raise.

Messages contain paths, and topics and warehouses may have any name, such as `http-412` or `AccessDenied`. An exception
is therefore identified by its class. Only if the class is ambiguous, the message is matched too, at a position where no
path can occur.
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

CAUSES_MAX = 20  # longer than any real chain; ends a cyclic one
REASON_CHARS_MAX = 300  # NameNodes append the state of the whole cluster

REMOTE_EXCEPTION: Final = "org.apache.hadoop.ipc.RemoteException"
ILLEGAL_ARGUMENT: Final = "java.lang.IllegalArgumentException"
AWS_SDK: Final = r"software\.amazon\.awssdk\..*"


@dataclass(frozen=True, slots=True)
class JavaFailure:
    """A kind of Java exception, and the `OSError` that is raised for it. An exception is of this kind if its class and
    its message match both patterns.

    Args:
        class_pattern: a pattern of the full class name.
        error_number: the error number of the `OSError`.
        message: the message of the `OSError`; "" for that of the Java exception.
        message_pattern: a pattern of the exception's message; "" for any.
        is_outage: whether the storage fails for every path.
    """

    class_pattern: str
    error_number: int
    message: str = ""
    message_pattern: str = ""
    is_outage: bool = False


def _classes(*names: str) -> str:
    """Returns a regular expression for the full names of Java classes with one of these simple names. It permits any
    package, because Hadoop has moved some classes."""
    return rf"(?:.*[.$])?(?:{'|'.join(names)})"


def _http_status_pattern(status: str) -> str:
    """Returns a regular expression for a response with one of these HTTP statuses, as the AWS SDK prints it after the
    store's message.

    Args:
        status: a status, or several separated by `|`.
    """
    return rf"\(Service: \w+, Status Code: (?:{status})\b(?!.*\(Service: )"


SAFE_MODE = (
    "the NameNode is in safe mode and accepts no changes (hdfs dfsadmin -safemode get); load again when it has left it"
)
NO_DATA_NODE = "no DataNode accepts a block: they are full, or none is alive (hdfs dfsadmin -report)"
NO_S3A = (
    "Spark has no S3A; set spark.jars.packages to org.apache.hadoop:hadoop-aws of the release of Spark's own Hadoop"
)
EXPIRED_CREDENTIALS = "the credentials of the bucket have expired; renew them, then load again"
BAD_REQUEST = (
    "the bucket responds with status 400 without a reason: usually the credentials have expired, or "
    "fs.s3a.endpoint.region is not the bucket's; correct that, then load again"
)

KNOWN_FAILURES: tuple[JavaFailure, ...] = (
    # The RPC client's message if it got no response (`NetUtils.wrapException`).
    JavaFailure(".*", errno.EIO, is_outage=True, message_pattern=(
        r"^(?:Call From |No Route to Host from |Invalid host name: local host is|DestHost:destPort "
        r"|End of File Exception between local host is)")),
    JavaFailure(_classes("SafeModeException"), errno.EROFS, SAFE_MODE, is_outage=True),
    JavaFailure(_classes(r"\w*Quota\w*ExceededException"), errno.EDQUOT),
    JavaFailure(r"java\.io\.IOException", errno.ENOSPC, NO_DATA_NODE, r"^File /.* could only be written to \d+ of "),
    # A full local disk: from the writer, from opening a file for writing, and from choosing a directory.
    JavaFailure(r"java\.io\.IOException", errno.ENOSPC, message_pattern=r"^No space left on device$"),
    JavaFailure(r"java\.io\.FileNotFoundException", errno.ENOSPC, message_pattern=r"^/.* \(No space left on device\)$"),
    JavaFailure(_classes("DiskErrorException"), errno.ENOSPC,
            message_pattern=r"^No space available in any of the local "),
    JavaFailure(_classes("FileAlreadyExistsException", "RemoteFileChangedException"), errno.EEXIST),
    # The store's response to a conditional create.
    JavaFailure(AWS_SDK, errno.EEXIST, message_pattern=_http_status_pattern("412")),
    JavaFailure(_classes("FileNotFoundException", "NoSuchFileException"), errno.ENOENT),
    JavaFailure(_classes("AccessControlException", "AccessDeniedException"), errno.EACCES),
    JavaFailure(AWS_SDK, errno.EACCES, message_pattern=_http_status_pattern("401|403")),
    JavaFailure(AWS_SDK, errno.EPERM, EXPIRED_CREDENTIALS, r"^The provided token has expired", is_outage=True),
    # The response to a HEAD has no body, and S3A usually sends a HEAD first.
    JavaFailure(AWS_SDK, errno.EPERM, BAD_REQUEST, r"^(?:Bad Request|null) \(Service: \w+, Status Code: 400",
            is_outage=True),
    JavaFailure(_classes("PathIsNotEmptyDirectoryException"), errno.ENOTEMPTY),
    JavaFailure(_classes("ClassNotFoundException"), errno.ENOSYS, NO_S3A, r"^Class org\.apache\.hadoop\.fs\.s3a\."),
    JavaFailure(_classes("AWSServiceThrottledException"), errno.EBUSY, is_outage=True),
    JavaFailure(AWS_SDK, errno.EBUSY, message_pattern=_http_status_pattern("503"), is_outage=True),
    JavaFailure(AWS_SDK, errno.EIO, message_pattern=r"^Unable to execute HTTP request: ", is_outage=True),
    # S3A raises these instead of the SDK's.
    JavaFailure(_classes("HttpChannelEOFException", "AWSApiCallTimeoutException", "AWSNoResponseException"), errno.EIO,
            is_outage=True),
    JavaFailure(_classes("UnknownHostException", "StandbyException"), errno.EIO, is_outage=True),
)  # fmt: skip
"""The known failures. The first entry that matches an exception or one of its causes applies."""


def failure(error: Py4JError, path: str) -> OSError:
    """Returns the `OSError` to raise for a failed Java call on `path`: a `StorageUnavailable` if the storage fails for
    every path, otherwise one with the error number that fits the Java exception."""
    if isinstance(error, Py4JNetworkError):
        return StorageUnavailable(errno.EPIPE, "Spark's JVM has ended; see logs/spark.log in the data directory", path)
    if not isinstance(error, Py4JJavaError):
        return OSError(errno.EIO, _truncated(_one_line(str(error))), path)
    chain = list(_causes(error.java_exception))
    reason = _truncated(next((message for _, message in reversed(chain) if message), "no reason given"))
    sentence = f"{re.split('[.$]', chain[-1][0])[-1]}: {reason}"
    known = next((one for one in KNOWN_FAILURES if any(_matches(one, *thrown) for thrown in chain)), None)
    if known is None:
        return OSError(errno.EIO, sentence, path)
    if known.error_number != errno.EIO:
        sentence = known.message or f"{os.strerror(known.error_number)}: {reason}"
    return (StorageUnavailable if known.is_outage else OSError)(known.error_number, sentence, path)


def is_refused_option(error: Py4JError, option: str) -> bool:
    """Whether a builder of Hadoop failed because the file system does not know the mandatory option that the builder
    was given.

    Args:
        error: the exception of the builder.
        option: the name of the option.
    """
    if not isinstance(error, Py4JJavaError):
        return False
    return any(name == ILLEGAL_ARGUMENT and option in message for name, message in _causes(error.java_exception))


def _matches(known: JavaFailure, name: str, message: str) -> bool:
    return bool(re.fullmatch(known.class_pattern, name) and re.search(known.message_pattern, message))


def _causes(cause: object) -> Iterator[tuple[str, str]]:
    """Yields (class name, first line of the message) of the Java exception `cause`, then of each of its causes."""
    for _ in range(CAUSES_MAX):
        name = str(cause.getClass().getName())  # type: ignore[attr-defined]
        if name == REMOTE_EXCEPTION:
            name = str(cause.getClassName())  # type: ignore[attr-defined]  # the class name at the server
        message = _one_line(cause.getMessage() or "")  # type: ignore[attr-defined]
        yield name, message
        # An exception received over RPC has lost its causes, and begins with the original class: a NameNode that starts
        # up in safe mode reports it inside a RetriableException.
        wrapped = re.match(r"((?:\w+\.)+\w+(?:Exception|Error)): (.*)", message)
        if wrapped:
            yield wrapped[1], wrapped[2]
        inner = cause.getCause()  # type: ignore[attr-defined]
        if inner is None or inner.equals(cause):
            return
        cause = inner


def _one_line(text: str) -> str:
    """Returns the first line of `text`, the message of a Java exception. The further lines are a stack trace, if the
    exception was received over RPC."""
    lines = text.strip().splitlines()
    return " ".join(lines[0].split()) if lines else ""


def _truncated(reason: str) -> str:
    return reason[:REASON_CHARS_MAX]
