"""A Java exception becomes the error that a local file system would raise, with a reason of one line."""

from __future__ import annotations

import errno
import itertools
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from headrace.loader.errors import StorageUnavailable
from headrace.loader.storage.hadoop.failures import (
    BAD_REQUEST,
    EXPIRED_CREDENTIALS,
    NO_DATA_NODE,
    NO_S3A,
    SAFE_MODE,
    failure,
    is_refused_option,
)

PATH = "hdfs://nn:8020/w/_headrace/log/000000001.json"
IPC = "org.apache.hadoop.ipc.RemoteException"
SDK = "software.amazon.awssdk.services.s3.model.S3Exception"
SDK_CLIENT = "software.amazon.awssdk.core.exception.SdkClientException"


@dataclass(eq=False)
class Thrown:
    """A Java exception as py4j presents it; py4j reads `_target_id` and `_gateway_client`. `remote` is the class of a
    RemoteException at the server."""

    name: str
    message: str | None
    cause: Thrown | None = None
    remote: str = "java.io.IOException"
    _target_id: str = "o1"
    _gateway_client: object = None

    def getClass(self) -> Thrown:  # Java's name, as the methods below
        return self

    def getName(self) -> str:
        return self.name

    def getClassName(self) -> str:
        return self.remote

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> Thrown | None:
        return self.cause

    def equals(self, other: object) -> bool:
        return self is other


S3A_NOT_FOUND = Thrown("java.lang.ClassNotFoundException", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found")
REFUSED = Thrown("java.net.ConnectException", "Connection refused")
PRECONDITION = Thrown(
    SDK,
    "At least one of the pre-conditions you specified did not hold (Service: S3, Status Code: 412, Request ID: MRN) "
    "(SDK Attempt Count: 1)",
)
SLOW_DOWN = Thrown(SDK, "Slow Down (Service: S3, Status Code: 503, Request ID: null)")
DENIED = Thrown(SDK, "Access Denied (Service: S3, Status Code: 403, Request ID: X, Extended Request ID: Y)")
NO_RESPONSE = (
    "getFileStatus on s3a://lake/q: software.amazon.awssdk.core.exception.SdkClientException: Unable to execute"
)
REFUSED_IN_SAFE_MODE = (
    "Cannot rename /w/y. Name node is in safe mode.\nIt was turned on manually. Use …\n\tat org.apache.hadoop.hdfs…"
)
SAFE_MODE_CLASS = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"
RPC = "For more details see:  http://wiki.apache.org/hadoop/"


def os_error(thrown: Thrown, path: str = PATH) -> OSError:
    return failure(Py4JJavaError("An error occurred", thrown), path)


PATH_FAILURES = [
    (
        Thrown("java.io.FileNotFoundException", "File does not exist: /w/x\n\tat org.apache.hadoop.hdfs…"),
        errno.ENOENT,
        "No such file or directory: File does not exist: /w/x",
    ),
    (Thrown("java.nio.file.NoSuchFileException", "/w/x"), errno.ENOENT, "/w/x"),
    (Thrown("org.apache.hadoop.fs.FileAlreadyExistsException", "rename destination /w/x"), errno.EEXIST, "/w/x"),
    (
        Thrown("org.apache.hadoop.fs.s3a.RemoteFileChangedException", "Writing Object on w/x", PRECONDITION),
        errno.EEXIST,
        "412",
    ),
    (PRECONDITION, errno.EEXIST, "412"),
    (
        Thrown(IPC, "File /w/x could only be written to 0 of the 1 minReplication nodes. There are 1 datanode(s)"),
        errno.ENOSPC,
        NO_DATA_NODE,
    ),
    (
        Thrown(IPC, "File /w/x could only be written to 2 of the 6 required nodes for RS-6-3-1024k. There are 2"),
        errno.ENOSPC,
        NO_DATA_NODE,
    ),
    (Thrown("java.io.IOException", "No space left on device"), errno.ENOSPC, "No space left on device"),
    (
        Thrown("org.apache.hadoop.fs.FSError", "java.io.IOException: No space left on device"),
        errno.ENOSPC,
        "No space left on device",
    ),
    (
        Thrown("java.io.FileNotFoundException", "/tmp/headrace-1 (No space left on device)"),
        errno.ENOSPC,
        "/tmp/headrace-1",
    ),
    (
        Thrown(
            "org.apache.hadoop.util.DiskChecker$DiskErrorException",
            "No space available in any of the local directories.",
        ),
        errno.ENOSPC,
        "No space available",
    ),
    (
        Thrown("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /w is exceeded"),
        errno.EDQUOT,
        "The DiskSpace quota of /w is exceeded",
    ),
    (
        Thrown("org.apache.hadoop.hdfs.protocol.QuotaByStorageTypeExceededException", "Quota by type : SSD"),
        errno.EDQUOT,
        "SSD",
    ),
    (
        Thrown("org.apache.hadoop.security.AccessControlException", "Permission denied: user=me"),
        errno.EACCES,
        "Permission denied: user=me",
    ),
    (Thrown("java.nio.file.AccessDeniedException", "s3a://lake/w: getFileStatus", DENIED), errno.EACCES, "Denied"),
    (DENIED, errno.EACCES, "Denied"),
    (
        Thrown("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "`/w': Directory is not empty"),
        errno.ENOTEMPTY,
        "Directory is not empty",
    ),
    (
        Thrown(IPC, "/w is non empty", remote="org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"),
        errno.ENOTEMPTY,
        "/w is non empty",
    ),
    (
        Thrown("java.lang.RuntimeException", "x", S3A_NOT_FOUND),
        errno.ENOSYS,
        NO_S3A,
    ),
    (
        Thrown(
            IPC,
            "The maximum path component name limit of y in directory /w is exceeded: limit=255 length=300",
            remote="org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException",
        ),
        errno.EIO,
        "PathComponentTooLongException: The maximum path component name limit",
    ),
    (
        Thrown("org.apache.hadoop.hdfs.BlockMissingException", "Could not obtain block: BP-1 file=/w/y"),
        errno.EIO,
        "BlockMissingException: Could not obtain block",
    ),
    (Thrown("java.lang.NullPointerException", None), errno.EIO, "NullPointerException: "),
]
"""The Java exception, the `errno` of its error, and a part of its reason."""


def find_wrong_rows(rows: list[tuple[Thrown, int, str]], *, is_outage: bool) -> list[tuple[Thrown, OSError]]:
    """Returns the rows whose error differs from the expected one, each with that error."""
    found = [(row, os_error(row[0])) for row in rows]
    return [
        (thrown, error)
        for (thrown, number, reason), error in found
        if (error.errno, error.filename) != (number, PATH)
        or type(error) is not (StorageUnavailable if is_outage else type(OSError(number, "")))
        or reason not in str(error.strerror)
        or "\n" in str(error.strerror)
    ]


def test_failure_of_one_path_has_its_errno_class_and_reason() -> None:
    assert find_wrong_rows(PATH_FAILURES, is_outage=False) == []


OUTAGES = [
    (
        Thrown(SAFE_MODE_CLASS, REFUSED_IN_SAFE_MODE, Thrown(IPC, REFUSED_IN_SAFE_MODE, remote=SAFE_MODE_CLASS)),
        errno.EROFS,
        SAFE_MODE,
    ),
    (Thrown(IPC, REFUSED_IN_SAFE_MODE, remote=SAFE_MODE_CLASS), errno.EROFS, SAFE_MODE),
    (
        Thrown(IPC, f"{SAFE_MODE_CLASS}: {REFUSED_IN_SAFE_MODE}", remote="org.apache.hadoop.ipc.RetriableException"),
        errno.EROFS,
        SAFE_MODE,
    ),
    (
        Thrown("java.net.ConnectException", f"Call From vm/127.0.0.1 to nn:8020 failed on …; {RPC}", REFUSED),
        errno.EIO,
        "ConnectException: Connection refused",
    ),
    (
        Thrown(
            "java.io.EOFException",
            f'End of File Exception between local host is: "vm/127.0.0.1"; destination host is: "nn":8020; {RPC}',
            Thrown("java.io.EOFException", ""),
        ),
        errno.EIO,
        "EOFException: End of File Exception between",
    ),
    (
        Thrown("java.net.NoRouteToHostException", f"No Route to Host from  vm/127.0.0.1 to nn:8020: {RPC}"),
        errno.EIO,
        "No Route to Host",
    ),
    (
        Thrown("java.net.UnknownHostException", f'Invalid host name: local host is: "vm/127.0.0.1"; {RPC}'),
        errno.EIO,
        "Invalid host name",
    ),
    (
        Thrown(
            "java.io.IOException",
            "DestHost:destPort nn:8020 , LocalHost:localPort vm/127.0.0.1:0. Failed on local exception: x",
            Thrown("org.apache.hadoop.security.AccessControlException", "Client cannot authenticate via:[TOKEN]"),
        ),
        errno.EIO,
        "AccessControlException: Client cannot authenticate",
    ),
    (
        Thrown(
            "java.lang.IllegalArgumentException",
            "java.net.UnknownHostException: nn",
            Thrown("java.net.UnknownHostException", "nn"),
        ),
        errno.EIO,
        "UnknownHostException: nn",
    ),
    (
        Thrown(
            IPC,
            "Operation category READ is not supported in state standby. Visit https://s.apache.org/sbnn-error",
            remote="org.apache.hadoop.ipc.StandbyException",
        ),
        errno.EIO,
        "StandbyException: Operation category READ",
    ),
    (
        Thrown("org.apache.hadoop.fs.s3a.AWSServiceThrottledException", "getFileStatus on s3a://lake/q", SLOW_DOWN),
        errno.EBUSY,
        "Slow Down",
    ),
    (SLOW_DOWN, errno.EBUSY, "503"),
    (
        Thrown(
            "org.apache.hadoop.fs.s3a.AWSBadRequestException",
            "PUT 0-byte object  on w/x",
            Thrown(SDK, "The provided token has expired. (Service: S3, Status Code: 400, Request ID: X)"),
        ),
        errno.EPERM,
        EXPIRED_CREDENTIALS,
    ),
    (
        Thrown(
            "org.apache.hadoop.fs.s3a.AWSBadRequestException",
            "getFileStatus on s3a://lake/w/x",
            Thrown(SDK, "Bad Request (Service: S3, Status Code: 400, Request ID: null)"),
        ),
        errno.EPERM,
        BAD_REQUEST,
    ),
    (
        Thrown(
            "java.net.ConnectException",
            NO_RESPONSE,
            Thrown(
                SDK_CLIENT,
                "Unable to execute HTTP request: Connect to 127.0.0.1:1 [/127.0.0.1] failed: Connection refused",
                REFUSED,
            ),
        ),
        errno.EIO,
        "ConnectException: Connection refused",
    ),
    (
        Thrown(
            "org.apache.hadoop.fs.s3a.HttpChannelEOFException",
            NO_RESPONSE,
            Thrown("org.apache.http.NoHttpResponseException", "The target server failed to respond"),
        ),
        errno.EIO,
        "NoHttpResponseException: The target server failed to respond",
    ),
    (Thrown("org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException", NO_RESPONSE), errno.EIO, "Unable to execute"),
    (Thrown("org.apache.hadoop.fs.s3a.AWSNoResponseException", "copyFile(a, b)"), errno.EIO, "copyFile"),
]
"""The same for failures that do not depend on the path."""


def test_failure_of_the_whole_storage_is_storage_unavailable() -> None:
    assert find_wrong_rows(OUTAGES, is_outage=True) == []


HOSTILE_NAMES = (
    "http-412",
    "slow-503",
    "401",
    "AccessDenied",
    "AccessDeniedException",
    "SafeModeException",
    "Name node is in safe mode",
    "x is non empty",
    "PathIsNotEmptyDirectoryException",
    "No space left on device",
    "DSQuotaExceededException",
    "x could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running",
    "FileAlreadyExistsException",
    "RemoteFileChangedException",
    "SlowDown",
    "The provided token has expired",
    "Bad Request (Service: S3, Status Code: 400",
    "Status Code: 503",
    "Call From a to b failed on connection exception",
    "Unable to execute HTTP request: Connection refused",
    "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
    "No space available in any of the local directories",
    "java.net.UnknownHostException: nn",
)
"""Names that topics or their parent directories may have."""


DIRECTORIES = ("hdfs://nn:8020/w", "/w", "s3a://lake/w", "w")

FAILURES_OF_ANY_PATH = [
    ("java.io.FileNotFoundException", "File does not exist: {}", None, errno.ENOENT),
    ("java.io.FileNotFoundException", "File {} does not exist.", None, errno.ENOENT),
    ("java.io.FileNotFoundException", "{}", None, errno.ENOENT),
    ("java.io.FileNotFoundException", "No such file or directory: {}", None, errno.ENOENT),
    (
        "java.io.FileNotFoundException",
        "getFileStatus on {}: software.amazon.awssdk.services.s3.model.NoSuchKeyException: x",
        Thrown(SDK, "No object {} (Service: S3, Status Code: 404, Request ID: X)"),
        errno.ENOENT,
    ),
    ("org.apache.hadoop.security.AccessControlException", 'Permission denied: inode="{}"', None, errno.EACCES),
    ("org.apache.hadoop.fs.PathIsNotEmptyDirectoryException", "`{}': it is not empty", None, errno.ENOTEMPTY),
    ("java.io.IOException", "Could not rename {}", None, errno.EIO),
    (SDK, "Internal error at {} (Service: S3, Status Code: 500, Request ID: X)", None, errno.EIO),
]
"""The class, the message with the path as `{}`, the cause, and the `errno`, which must not depend on the path."""


def test_path_does_not_change_the_error() -> None:
    wrong = []
    for directory, name, row in itertools.product(DIRECTORIES, HOSTILE_NAMES, FAILURES_OF_ANY_PATH):
        class_name, message, cause, number = row
        path = f"{directory}/{name}/dt=2026-01-31/0-1.avro"
        inner = None if cause is None else Thrown(cause.name, (cause.message or "").format(path))
        error = os_error(Thrown(class_name, message.format(path), inner), path)
        if error.errno != number or isinstance(error, StorageUnavailable):
            wrong.append((class_name, message, path, error))
    assert wrong == []


def test_status_is_the_last_one_of_the_message() -> None:
    """The text of the store comes first, and may contain anything."""
    message = "No key x (Service: S3, Status Code: 412, Request ID: X) (Service: S3, Status Code: 404, Request ID: X)"
    assert os_error(Thrown(SDK, message)).errno == errno.EIO


def test_long_reason_is_recognized_and_truncated() -> None:
    error = os_error(Thrown(SDK, f"{'x' * 1000} (Service: S3, Status Code: 412, Request ID: X)"))
    assert error.errno == errno.EEXIST
    assert len(str(error.strerror)) < 400


def test_refused_option_is_recognized_by_class_and_option() -> None:
    option = "fs.option.create.conditional.overwrite"
    unknown = Thrown("java.lang.IllegalArgumentException", f'Unknown mandatory key "{option}"')
    assert is_refused_option(Py4JJavaError("An error occurred", unknown), option)
    for other in (
        Thrown("java.lang.IllegalArgumentException", "java.net.UnknownHostException: nn"),
        Thrown("java.io.FileNotFoundException", f"s3a://lake/IllegalArgumentException/{option}"),
    ):
        assert not is_refused_option(Py4JJavaError("An error occurred", other), option)
    assert not is_refused_option(Py4JError(f"IllegalArgumentException {option}"), option)


def test_ended_jvm_is_storage_unavailable() -> None:
    """A `BrokenPipeError` would end commands with exit code 0, as when the reader of their output has exited."""
    error = failure(Py4JNetworkError("Answer from Java side is empty"), PATH)
    assert type(error) is StorageUnavailable
    assert (error.errno, error.filename) == (errno.EPIPE, PATH)


def test_error_without_java_exception_has_its_first_line() -> None:
    assert failure(Py4JError("no such\nmethod"), PATH).strerror == "no such"
