"""Accesses HDFS and S3A through Spark's JVM, called with py4j from the driver.

A call is a round trip to the JVM of a fraction of a millisecond, and bytes are transferred in base64, so only small
files are read and written this way. The JVM copies larger files from or to local files. Hadoop's client retries
unresponsive servers as the cluster's configuration says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from py4j.protocol import Py4JError

from headrace.loader.errors import NoPutIfAbsent
from headrace.loader.storage.hadoop.failures import failure, is_refused_option
from headrace.loader.storage.hadoop.file_system import FoundFile
from headrace.loader.storage.hadoop.prompt_close import prompt_close

CONDITIONAL_CREATE = "fs.option.create.conditional.overwrite"
"""An option of S3A's `createFile`: the store refuses an existing name in the request that uploads the content."""

NOT_EMPTY_ERRORS = frozenset({errno.ENOTEMPTY})

READS_MAX = 5  # attempts to read a file that is replaced each time between opening and reading


class Gateway(Protocol):
    """The members of py4j's gateway to a JVM that the loader uses. The attributes of `jvm` are Java packages and
    classes, resolved at run time."""

    @property
    def jvm(self) -> Any: ...

    def new_array(self, of: Any, length: int, /) -> Any: ...


class _HadoopFileSystem:
    """The common part of HDFS and S3A.

    Args:
        gateway: returns the gateway to a running JVM; called for each operation, because a closed JVM may have been
            replaced.
        uri: URI of a directory of the file system.
    """

    def __init__(self, gateway: Callable[[], Gateway], uri: str) -> None:
        self._gateway = gateway
        self._uri = uri
        self._opened: tuple[Gateway, Any, Any] | None = None

    def read(self, path: str) -> bytes | None:
        try:
            with _translated_errors(path), contextlib.closing(self._fs.open(self._path(path))) as stream:
                return bytes(stream.readAllBytes())
        except FileNotFoundError:
            return None

    def open(self, path: str) -> IO[bytes]:
        descriptor, name = tempfile.mkstemp(prefix="headrace-")
        try:
            os.close(descriptor)
            with _translated_errors(path):
                # The True omits the checksum file that Hadoop writes to local disks.
                self._fs.copyToLocalFile(False, self._path(path), self._path(f"file://{name}"), True)
            return Path(name).open("rb")
        finally:
            Path(name).unlink()

    def upload(self, local: Path, target: str) -> None:
        jvm = self._gateway().jvm
        with _translated_errors(target):
            configuration = self._fs.getConf()
            # copyFromLocalFile is avoided: S3A uses another client for it, which some stores do not support.
            jvm.org.apache.hadoop.fs.FileUtil.copy(
                jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration),
                self._path(f"file://{local}"),
                self._fs,
                self._path(target),
                False,
                configuration,
            )

    def length(self, path: str) -> int | None:
        status = self._status(path)
        return int(status.getLen()) if status is not None and status.isFile() else None

    def modified_ms(self, path: str) -> int | None:
        status = self._status(path)
        return None if status is None else int(status.getModificationTime())

    def children(self, directory: str) -> tuple[str, ...]:
        try:
            with _translated_errors(directory):
                found = self._fs.listStatus(self._path(directory))
                if len(found) == 1 and self.length(directory) is not None:
                    return ()  # the path is a file: Hadoop lists the file itself
                return tuple(sorted(str(one.getPath().getName()) for one in found))
        except FileNotFoundError:
            return ()

    def lengths(self, directory: str) -> Mapping[str, int | None]:
        try:
            with _translated_errors(directory):
                found = self._fs.listStatus(self._path(directory))
                if len(found) == 1 and self.length(directory) is not None:
                    return {}  # the path is a file: Hadoop lists the file itself
                return {str(one.getPath().getName()): int(one.getLen()) if one.isFile() else None for one in found}
        except FileNotFoundError:
            return {}

    def files_below(self, directory: str) -> tuple[FoundFile, ...]:
        found = []
        try:
            with _translated_errors(directory):
                above = str(self._fs.makeQualified(self._path(directory)))
                files = self._fs.listFiles(self._path(directory), True)
                while files.hasNext():
                    one = files.next()
                    path = str(one.getPath()).removeprefix(above)
                    found.append(FoundFile(f"{directory}{path}", int(one.getLen()), int(one.getModificationTime())))
        except FileNotFoundError:
            return ()
        return tuple(found)

    def delete(self, path: str, *, tree: bool = False) -> None:
        with _translated_errors(path):
            self._fs.delete(self._path(path), tree)

    def delete_if_empty(self, directory: str) -> bool:
        try:
            with _translated_errors(directory):
                return bool(self._fs.delete(self._path(directory), False))
        except OSError as error:
            if error.errno in NOT_EMPTY_ERRORS:
                return False
            raise

    def _status(self, path: str) -> Any | None:
        try:
            with _translated_errors(path):
                return self._fs.getFileStatus(self._path(path))
        except FileNotFoundError:
            return None

    def _path(self, path: str) -> Any:
        return self._gateway().jvm.org.apache.hadoop.fs.Path(path)

    @property
    def _fs(self) -> Any:
        return self._open()[1]

    @property
    def _context(self) -> Any:
        return self._open()[2]

    def _open(self) -> tuple[Gateway, Any, Any]:
        """Returns the gateway to the JVM and Hadoop's two interfaces to the file system: `FileSystem`, and
        `FileContext`, which is None on S3A. They are opened by the first call, and again if the JVM was replaced."""
        gateway = self._gateway()
        if self._opened is None or self._opened[0] is not gateway:
            jvm = gateway.jvm
            with _translated_errors(self._uri):
                configuration = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(
                    jvm.org.apache.spark.SparkConf()
                )
                for key, value in self._settings(jvm, configuration).items():
                    configuration.set(key, value)
                uri = jvm.java.net.URI(self._uri)
                # A separate instance: shared instances have the configuration of their first user.
                opened = jvm.org.apache.hadoop.fs.FileSystem.newInstance(uri, configuration)
                self._opened = (gateway, opened, self._context_of(jvm, uri, configuration))
        return self._opened

    def _settings(self, jvm: Any, configuration: Any) -> Mapping[str, str]:
        """Returns Hadoop settings for this kind of file system, which are added to the cluster's configuration.

        Args:
            jvm: the Java packages of Spark's JVM.
            configuration: the cluster's configuration, Hadoop's Java object.
        """
        return {}

    def _context_of(self, jvm: Any, uri: Any, configuration: Any) -> Any:
        return None


class HdfsFileSystem(_HadoopFileSystem):
    """HDFS. A rename is one edit of the NameNode, which writes it to its disk or to most JournalNodes before it
    responds."""

    def put_if_absent(self, path: str, content: bytes, scratch: str) -> bool:
        """Creates the file `path` with this content, complete from the moment it exists; returns False if it exists
        already. Writes a temporary file in `scratch`, syncs it to the disks of its DataNodes, and renames it. A
        `create` without overwrite would show an empty file first, and leave it there if its writer is killed."""
        temporary = self._write_temporary(content, scratch)
        try:
            self.move(temporary, path)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(OSError):
                self.delete(temporary)
        return True

    def replace(self, path: str, content: bytes, scratch: str) -> None:
        temporary = self._write_temporary(content, scratch)
        self._make_parent(path)
        self._rename(temporary, path, "OVERWRITE")

    def persist(self, path: str) -> None:
        """Makes the existing file `path` durable by setting its modification time to its present value. The NameNode
        syncs edits in order, so when this edit is durable, the edit that created the file is too."""
        status = self._status(path)
        if status is not None:
            with _translated_errors(path):
                self._fs.setTimes(self._path(path), status.getModificationTime(), -1)

    def move(self, source: str, target: str) -> None:
        while True:
            self._make_parent(target)
            try:
                self._rename(source, target, "NONE")
            except FileNotFoundError:
                if self._status(source) is None:
                    raise
                continue  # another process deleted the empty directory
            return

    def copy(self, source: str, target: str, scratch: str) -> None:
        temporary = f"{scratch}/.{secrets.token_hex(8)}"
        with _translated_errors(source):
            configuration = self._fs.getConf()
            copy = self._gateway().jvm.org.apache.hadoop.fs.FileUtil.copy
            copy(self._fs, self._path(source), self._fs, self._path(temporary), False, configuration)
        try:
            with contextlib.suppress(FileExistsError):
                self.move(temporary, target)
        finally:
            with contextlib.suppress(OSError):
                self.delete(temporary)

    def _write_temporary(self, content: bytes, scratch: str) -> str:
        temporary = f"{scratch}/.{os.getpid()}-{secrets.token_hex(8)}"
        with _translated_errors(temporary):
            stream = self._fs.create(self._path(temporary), False)
            try:
                stream.write(content)
                stream.hsync()
            finally:
                stream.close()
        return temporary

    def _make_parent(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        with _translated_errors(directory):
            self._fs.mkdirs(self._path(directory))

    def _rename(self, source: str, target: str, option: str) -> None:
        rename = self._gateway().jvm.org.apache.hadoop.fs.Options.Rename
        options = self._gateway().new_array(rename, 1)
        options[0] = rename.valueOf(option)
        with _translated_errors(target):
            self._context.rename(self._path(source), self._path(target), options)

    def _settings(self, jvm: Any, configuration: Any) -> Mapping[str, str]:
        return prompt_close(jvm, configuration)

    def _context_of(self, jvm: Any, uri: Any, configuration: Any) -> Any:
        return jvm.org.apache.hadoop.fs.FileContext.getFileContext(uri, configuration)


class S3aFileSystem(_HadoopFileSystem):
    """An S3 bucket. An object exists completely or not at all, and acknowledged changes are durable."""

    def _settings(self, jvm: Any, configuration: Any) -> Mapping[str, str]:
        # Since Hadoop 3.5 the default is `analytics`, which returns cached content of a replaced object.
        return {"fs.s3a.input.stream.type": "classic"}

    def read(self, path: str) -> bytes | None:
        """Returns the content of the small object `path`, None if it does not exist. Retries if the object is replaced
        between opening and reading, which S3A reports as an error."""
        for _ in range(READS_MAX - 1):
            with contextlib.suppress(FileExistsError):
                return super().read(path)
        return super().read(path)

    def put_if_absent(self, path: str, content: bytes, scratch: str) -> bool:
        try:
            with _translated_errors(path):
                builder = self._fs.createFile(self._path(path)).recursive().overwrite(False)
                try:
                    stream = builder.must(CONDITIONAL_CREATE, True).build()
                except Py4JError as error:
                    # An older release does not know the option and would check the name before it puts the content.
                    if is_refused_option(error, CONDITIONAL_CREATE):
                        raise NoPutIfAbsent(
                            path, "Spark's hadoop-aws has no conditional create; use release 3.4.2 or newer"
                        ) from error
                    raise
                stream.write(content)
                stream.close()
        except FileExistsError:
            return False
        return True

    def replace(self, path: str, content: bytes, scratch: str) -> None:
        with _translated_errors(path):
            stream = self._fs.create(self._path(path), True)
            stream.write(content)
            stream.close()

    def persist(self, path: str) -> None:
        """Does nothing, because an object that can be read is durable."""

    def move(self, source: str, target: str) -> None:
        """Renames the file or directory `source` to `target`: S3A copies the objects, then deletes the source."""
        # S3A raises the exception for a replaced object also if the source was deleted during the copy.
        with contextlib.suppress(FileExistsError), _translated_errors(target):
            if self._fs.rename(self._path(source), self._path(target)):
                return
        if self._status(source) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if self._status(target) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        raise OSError(errno.EIO, "the file was not moved, and Hadoop gives no reason; see logs/spark.log", target)

    def copy(self, source: str, target: str, scratch: str) -> None:
        with _translated_errors(source):
            configuration = self._fs.getConf()
            copy = self._gateway().jvm.org.apache.hadoop.fs.FileUtil.copy
            copy(self._fs, self._path(source), self._fs, self._path(target), False, configuration)


FILE_SYSTEMS: dict[str, type[HdfsFileSystem | S3aFileSystem]] = {"hdfs": HdfsFileSystem, "s3a": S3aFileSystem}
"""The classes by the scheme of a URI."""


@contextlib.contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    """Converts Java exceptions inside the `with` block to `OSError` with this path."""
    try:
        yield
    except Py4JError as error:
        raise failure(error, path) from error
