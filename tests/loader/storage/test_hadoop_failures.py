"""What Java throws is the error that a local file system would raise, and says in one line what to do."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from headrace.loader.errors import StorageUnavailable
from headrace.loader.storage.hadoop.failures import failure, is_refused_option

PATH = "hdfs://nn:8020/w/_headrace/log/000000001.json"
IPC = "org.apache.hadoop.ipc.RemoteException"
SDK = "software.amazon.awssdk.services.s3.model.S3Exception"
SDK_CLIENT = "software.amazon.awssdk.core.exception.SdkClientException"


@dataclass(eq=False)
class Thrown:
    """A Java exception as py4j shows it; `_target_id` and `_gateway_client` are what it asks of one. `remote` is the
    class that a RemoteException had at the other end."""

    name: str
    message: str | None
    cause: Thrown | None = None
    remote: str = "java.io.IOException"
    _target_id: str = "o1"
    _gateway_client: object = None

    def getClass(self) -> Thrown:  # Java's name, as those below
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


NO_S3A = Thrown("java.lang.ClassNotFoundException", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found")
REFUSED = Thrown("java.net.ConnectException", "Connection refused")
PRECONDITION = Thrown(
    SDK,
    "At least one of the pre-conditions you specified did not hold (Service: S3, Status Code: 412, Request ID: MRN) "
    "(SDK Attempt Count: 1)",
)
SLOW_DOWN = Thrown(SDK, "Slow Down (Service: S3, Status Code: 503, Request ID: null)")
DENIED = Thrown(SDK, "Access Denied (Service: S3, Status Code: 403, Request ID: X, Extended Request ID: Y)")
NO_ANSWER = "getFileStatus on s3a://lake/q: software.amazon.awssdk.core.exception.SdkClientException: Unable to execute"
SAFE_MODE = (
    "Cannot rename /w/y. Name node is in safe mode.\nIt was turned on manually. Use …\n\tat org.apache.hadoop.hdfs…"
)
SAFE_MODE_CLASS = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"
RPC = "For more details see:  http://wiki.apache.org/hadoop/"


def meant(thrown: Thrown, path: str = PATH) -> OSError:
    return failure(Py4JJavaError("An error occurred", thrown), path)


@pytest.mark.parametrize(
    ("thrown", "number", "said"),
    [
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
            "they are full, or none is alive",
        ),
        (
            Thrown(IPC, "File /w/x could only be written to 2 of the 6 required nodes for RS-6-3-1024k. There are 2"),
            errno.ENOSPC,
            "they are full, or none is alive",
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
            Thrown("java.lang.RuntimeException", "x", NO_S3A),
            errno.ENOSYS,
            "set spark.jars.packages to org.apache.hadoop:hadoop-aws",
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
        (Thrown("java.lang.NullPointerException", None), errno.EIO, "NullPointerException: no reason given"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_path(thrown: Thrown, number: int, said: str) -> None:
    error = meant(thrown)
    assert (error.errno, error.filename) == (number, PATH)
    assert said in str(error.strerror)
    assert "\n" not in str(error.strerror)
    assert type(error) is type(OSError(number, ""))


@pytest.mark.parametrize(
    ("thrown", "number", "said"),
    [
        (
            Thrown(SAFE_MODE_CLASS, SAFE_MODE, Thrown(IPC, SAFE_MODE, remote=SAFE_MODE_CLASS)),
            errno.EROFS,
            "the NameNode is in safe mode and takes no changes (hdfs dfsadmin -safemode get); load again when it has",
        ),
        (Thrown(IPC, SAFE_MODE, remote=SAFE_MODE_CLASS), errno.EROFS, "in safe mode"),
        (
            Thrown(IPC, f"{SAFE_MODE_CLASS}: {SAFE_MODE}", remote="org.apache.hadoop.ipc.RetriableException"),
            errno.EROFS,
            "in safe mode",
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
            "the credentials of the bucket have expired; renew them",
        ),
        (
            Thrown(
                "org.apache.hadoop.fs.s3a.AWSBadRequestException",
                "getFileStatus on s3a://lake/w/x",
                Thrown(SDK, "Bad Request (Service: S3, Status Code: 400, Request ID: null)"),
            ),
            errno.EPERM,
            "mostly the credentials have expired",
        ),
        (
            Thrown(
                "java.net.ConnectException",
                NO_ANSWER,
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
                NO_ANSWER,
                Thrown("org.apache.http.NoHttpResponseException", "The target server failed to respond"),
            ),
            errno.EIO,
            "NoHttpResponseException: The target server failed to respond",
        ),
        (Thrown("org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException", NO_ANSWER), errno.EIO, "Unable to execute"),
        (Thrown("org.apache.hadoop.fs.s3a.AWSNoResponseException", "copyFile(a, b)"), errno.EIO, "copyFile"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_storage_as_a_whole(thrown: Thrown, number: int, said: str) -> None:
    error = meant(thrown)
    assert type(error) is StorageUnavailable
    assert (error.errno, error.filename) == (number, PATH)
    assert said in str(error.strerror)
    assert "\n" not in str(error.strerror)


HOSTILE = (
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
"""Names that topics or the folders above them may have."""


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    ("name_of_class", "message", "cause", "number"),
    [
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
    ],
)  # fmt: skip
@pytest.mark.parametrize("above", ["hdfs://nn:8020/w", "/w", "s3a://lake/w", "w"])
def test_no_path_makes_another_error_of_it(
    name: str, above: str, name_of_class: str, message: str, cause: Thrown | None, number: int
) -> None:
    path = f"{above}/{name}/dt=2026-01-31/0-1.avro"
    inner = None if cause is None else Thrown(cause.name, (cause.message or "").format(path))
    error = meant(Thrown(name_of_class, message.format(path), inner), path)
    assert error.errno == number
    assert not isinstance(error, StorageUnavailable)


def test_a_status_is_the_last_that_is_told() -> None:
    """What the store says comes first, and may say anything."""
    said = "No key x (Service: S3, Status Code: 412, Request ID: X) (Service: S3, Status Code: 404, Request ID: X)"
    assert meant(Thrown(SDK, said)).errno == errno.EIO


def test_a_long_reason_is_cut_and_understood_all_the_same() -> None:
    error = meant(Thrown(SDK, f"{'x' * 1000} (Service: S3, Status Code: 412, Request ID: X)"))
    assert error.errno == errno.EEXIST
    assert len(str(error.strerror)) < 400


def test_an_option_that_an_older_builder_does_not_know() -> None:
    option = "fs.option.create.conditional.overwrite"
    unknown = Thrown("java.lang.IllegalArgumentException", f'Unknown mandatory key "{option}"')
    assert is_refused_option(Py4JJavaError("An error occurred", unknown), option)
    for other in (
        Thrown("java.lang.IllegalArgumentException", "java.net.UnknownHostException: nn"),
        Thrown("java.io.FileNotFoundException", f"s3a://lake/IllegalArgumentException/{option}"),
    ):
        assert not is_refused_option(Py4JJavaError("An error occurred", other), option)
    assert not is_refused_option(Py4JError(f"IllegalArgumentException {option}"), option)


def test_a_jvm_that_is_gone() -> None:
    """No `BrokenPipeError`, which commands take for the end of whoever reads their output, and end with 0."""
    error = failure(Py4JNetworkError("Answer from Java side is empty"), PATH)
    assert type(error) is StorageUnavailable
    assert (error.errno, error.filename) == (errno.EPIPE, PATH)
    assert error.strerror == "Spark's JVM has ended; see logs/spark.log in the data folder"


def test_a_call_that_java_does_not_know() -> None:
    assert failure(Py4JError("no such\nmethod"), PATH).strerror == "no such"
