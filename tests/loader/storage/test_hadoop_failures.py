"""What Java throws is the error that a local file system would raise, and says in one line what to do."""

from __future__ import annotations

import errno
from dataclasses import dataclass

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from headrace.loader.storage.hadoop.failures import failure

PATH = "hdfs://nn:8020/w/_headrace/log/000000001.json"
IPC = "org.apache.hadoop.ipc.RemoteException"


@dataclass(eq=False)
class Thrown:
    """A Java exception as py4j shows it; `_target_id` and `_gateway_client` are what it asks of one."""

    name: str
    message: str | None
    cause: Thrown | None = None
    _target_id: str = "o1"
    _gateway_client: object = None

    def getClass(self) -> Thrown:  # Java's name, as those below
        return self

    def getName(self) -> str:
        return self.name

    def getMessage(self) -> str | None:
        return self.message

    def getCause(self) -> Thrown | None:
        return self.cause

    def equals(self, other: object) -> bool:
        return self is other


NO_S3A = Thrown("java.lang.ClassNotFoundException", "Class org.apache.hadoop.fs.s3a.S3AFileSystem not found")
REFUSED = Thrown("java.net.ConnectException", "Connection refused")


@pytest.mark.parametrize(
    ("thrown", "number", "said"),
    [
        (
            Thrown("java.io.FileNotFoundException", "File does not exist: /w/x\n\tat org.apache.hadoop.hdfs…"),
            errno.ENOENT,
            "No such file or directory: File does not exist: /w/x",
        ),
        (Thrown("org.apache.hadoop.fs.FileAlreadyExistsException", "rename destination /w/x"), errno.EEXIST, "/w/x"),
        (
            Thrown("org.apache.hadoop.fs.s3a.RemoteFileChangedException", "PUT", Thrown("X", "Status Code: 412")),
            errno.EEXIST,
            "412",
        ),
        (
            Thrown("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "Cannot create file"),
            errno.EROFS,
            "the NameNode is in safe mode and takes no changes (hdfs dfsadmin -safemode get); load again when it has",
        ),
        (
            Thrown(IPC, "File /w/x could only be written to 0 of the 1 minReplication nodes. There are 1 datanode(s)"),
            errno.ENOSPC,
            "they are full, or none is alive",
        ),
        (
            Thrown("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "The DiskSpace quota of /w is exceeded"),
            errno.EDQUOT,
            "The DiskSpace quota of /w is exceeded",
        ),
        (
            Thrown("org.apache.hadoop.security.AccessControlException", "Permission denied: user=me"),
            errno.EACCES,
            "Permission denied: user=me",
        ),
        (
            Thrown("java.lang.RuntimeException", "x", NO_S3A),
            errno.ENOSYS,
            "set spark.jars.packages to org.apache.hadoop:hadoop-aws",
        ),
        (
            Thrown("org.apache.hadoop.fs.s3a.AWSStatus500Exception", "Slow Down (Service: S3, Status Code: 503)"),
            errno.EBUSY,
            "Slow Down",
        ),
        (
            Thrown("java.net.ConnectException", "Call From a to b failed", REFUSED),
            errno.EIO,
            "ConnectException: Connection refused",
        ),
        (Thrown("java.lang.NullPointerException", None), errno.EIO, "NullPointerException: no reason given"),
    ],
)  # fmt: skip
def test_java_exceptions(thrown: Thrown, number: int, said: str) -> None:
    error = failure(Py4JJavaError("An error occurred", thrown), PATH)
    assert (error.errno, error.filename) == (number, PATH)
    assert said in error.strerror
    assert "\n" not in error.strerror
    assert type(error) is type(OSError(number, ""))


def test_a_jvm_that_is_gone() -> None:
    error = failure(Py4JNetworkError("Answer from Java side is empty"), PATH)
    assert error.strerror == "Spark's JVM has ended; see logs/spark.log in the data folder"


def test_a_call_that_java_does_not_know() -> None:
    assert failure(Py4JError("no such\nmethod"), PATH).strerror == "no such"
