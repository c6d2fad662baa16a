"""Finds and reads the schema files that a command line selects: files, patterns, directories and standard input."""

from __future__ import annotations

import glob
import json
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from headrace.avro_schema import Position, blank_out_comments
from headrace.compat.check_result import Failure, FailureKind

STANDARD_INPUT = "-"
SUFFIX = ".avsc"
JSON_SUFFIX = ".json"
"""Files with this suffix that are found in a directory are schemas only if their text is a named type."""

OTHER_FORMATS = {
    ".avdl": "is Avro IDL; convert it to schemas with `avro-tools idl2schemata`",
    ".avpr": 'is an Avro protocol; write each of its "types" to an .avsc file',
}
"""Files of other formats of Avro: the reason, by suffix, why they are not read."""

NAMED_TYPE_KEYS = {"record": "fields", "error": "fields", "enum": "symbols", "fixed": "size"}
BROKEN_SCHEMA = re.compile(r'\ufeff?\s*\{[^{]*"type"\s*:\s*"(record|error|enum|fixed)"')
"""Matches the start of a text that is invalid JSON but was probably meant to be a schema."""

FILE_BYTES_MAX = 16_000_000
"""Largest schema file that is read, in bytes: the most characters that a schema text may have, at four bytes each."""

SKIPPED_DIRECTORIES = frozenset({"node_modules", "__pycache__"})
"""Skipped in addition to hidden directories such as .git and .venv."""

FILES_MAX = 20_000
"""Maximum number of files that are searched for the definition of a type."""


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """A schema file that the command line selects.

    `path` is the path to open, which is also shown to users. `key` is the path below the directory that the command
    line names, with forward slashes; a baseline directory has the earlier version under the same key. The directory of
    a pattern is the part before the first element with a wildcard. If the command line names the file itself, `key` is
    the file's name. The `path` of standard input is a name that the user gives it, or `stdin.avsc`.
    """

    path: str
    key: str
    is_stdin: bool = False


@dataclass(frozen=True, slots=True)
class FoundFiles:
    files: tuple[SchemaFile, ...]
    failures: tuple[Failure, ...]


def find_files(arguments: Sequence[str], *, stdin_name: str = "") -> FoundFiles:
    """Returns the files that the arguments select, each once, in the order of the arguments, and a failure for every
    directory or pattern that selects none. A file that is an argument itself is returned even if it does not exist.

    Args:
        stdin_name: file name that stands for `-`; determines its subject and its path in a baseline.
    """
    files: dict[str, SchemaFile] = {}
    failures: list[Failure] = []
    for argument in arguments:
        found = list(_expand(normalize_path(argument), stdin_name))
        if not found:
            failures.append(Failure(FailureKind.UNREADABLE, argument, _no_match_reason(argument)))
        for file in found:
            files.setdefault(file.path, file)
    return FoundFiles(tuple(files.values()), tuple(failures))


def normalize_path(argument: str) -> str:
    """Returns the canonical name of the file that an argument of the command line names: relative to the working
    directory if the file is in it, without ./, with forward slashes on Windows too.

    CI, git, subjects and patterns of the settings use this name.
    """
    path = PurePath(argument)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_posix() if argument else ""


def _expand(argument: str, stdin_name: str) -> Iterator[SchemaFile]:
    if argument == STANDARD_INPUT:
        name = stdin_name or "stdin.avsc"
        yield SchemaFile(name, PurePath(name).name, is_stdin=True)
    elif argument and "\x00" not in argument and os.path.isdir(argument):  # noqa: PTH112 - "" is not "."
        yield from _files_below(argument)
    elif is_pattern(argument) and not os.path.exists(argument):  # noqa: PTH110
        fixed = argument[: len(re.split(r"[*?\[]", argument)[0])].rpartition("/")[0]
        for path in sorted(PurePath(name).as_posix() for name in glob.glob(argument, recursive=True)):  # noqa: PTH207
            if not os.path.isdir(path):  # noqa: PTH112
                yield SchemaFile(path, path[len(fixed) :].lstrip("/"))
    else:
        yield SchemaFile(argument, PurePath(argument).name)


def is_pattern(argument: str) -> bool:
    """Whether an argument has the wildcards of a glob pattern. A file whose name is exactly the argument takes
    precedence."""
    return re.search(r"[*?]|\[.*\]", argument, re.DOTALL) is not None


def _files_below(directory: str) -> Iterator[SchemaFile]:
    """Yields the schema files below a directory, sorted within each directory. Directories named like schemas are
    searched; special files such as pipes are skipped."""
    for path, names in _walk_directories(directory):
        for name in sorted(names):
            full = PurePath(path, name).as_posix()
            if (is_schema_name(name) and is_file(full)) or (is_json_name(name) and _holds_schema(full)):
                yield SchemaFile(full, PurePath(full).relative_to(PurePath(directory)).as_posix())


def directories_below(directory: str) -> Iterator[str]:
    """Yields a directory and the directories below it in which schema files are searched for. Omits hidden directories
    and `SKIPPED_DIRECTORIES`."""
    return (path for path, _ in _walk_directories(directory))


def _walk_directories(directory: str) -> Iterator[tuple[str, list[str]]]:
    for path, directories, names in os.walk(directory, followlinks=True):
        directories[:] = sorted(
            name for name in directories if is_searched(name) and not _is_link_loop(directory, path, name)
        )
        yield path, names


def is_searched(name: str) -> bool:
    """Whether the search for schema files enters a subdirectory of this name: it is not hidden and not in
    `SKIPPED_DIRECTORIES`."""
    return not name.startswith(".") and name not in SKIPPED_DIRECTORIES


def _is_link_loop(top: str, path: str, name: str) -> bool:
    """Whether the subdirectory `name` of the directory `path` is a symbolic link to a directory that contains it.

    Args:
        top: the directory in which the search began.
    """
    full = Path(path, name)
    if not full.is_symlink():
        return False
    target = os.path.realpath(full)
    through = (parent for parent in full.parents if parent.is_relative_to(top))
    return Path(os.path.realpath(path)).is_relative_to(target) or any(
        os.path.realpath(parent) == target for parent in through
    )


def is_schema_name(name: str) -> bool:
    """Whether the file name ends in `.avsc`, in any case. Such a file is always treated as a schema."""
    return name.lower().endswith(SUFFIX)


def is_json_name(name: str) -> bool:
    """Whether the file name ends in `.json`, in any case. Such a file that is found in a directory is a schema only if
    `is_schema_text` accepts its text."""
    return name.lower().endswith(JSON_SUFFIX)


def is_schema_text(text: str) -> bool:
    """Whether the text is a record, error, enum or fixed type in Avro's JSON, or invalid JSON that starts like one
    (also after a byte order mark)."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return BROKEN_SCHEMA.match(text) is not None
    kind = document.get("type") if isinstance(document, dict) else None
    return isinstance(kind, str) and "name" in document and NAMED_TYPE_KEYS.get(kind, "") in document


def _holds_schema(path: str) -> bool:
    if not is_file(path):
        return False
    text = read_text(path, comments=True)
    return isinstance(text, str) and is_schema_text(text)


def is_file(path: str) -> bool:
    """Whether the path is a regular file. A path that cannot be examined, such as a broken link, counts as a file;
    reading it reports the error."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return True


def _no_match_reason(argument: str) -> str:
    if is_pattern(argument):
        return "the pattern matches no file; expected schema files (.avsc)"
    suffixes = (PurePath(name).suffix.lower() for _, names in _walk_directories(argument) for name in names)
    reason = next((OTHER_FORMATS[suffix] for suffix in suffixes if suffix in OTHER_FORMATS), "")
    if reason:
        return f"the directory holds no schema file (.avsc), but a file that {reason}"
    return "the directory holds no schema file (.avsc)"


def read_text(file: SchemaFile | str, *, comments: bool = False) -> str | Failure:
    """Returns the text of a file or of standard input, or the failure to read it.

    Args:
        comments: replace comments with blanks.
    """
    path = file if isinstance(file, str) else file.path
    try:
        if isinstance(file, SchemaFile) and file.is_stdin:
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with open(path, "rb") as stream:  # noqa: PTH123 - Path would take "" for the current directory
                data = stream.read(FILE_BYTES_MAX + 1)
    except IsADirectoryError:
        return Failure(FailureKind.UNREADABLE, path, "is a directory; expected a schema file (.avsc)")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Failure(FailureKind.UNREADABLE, path, f"cannot be read: {reason}; expected a schema file")
    return decode(data, path, comments=comments)


def read_texts(files: Iterable[SchemaFile | str], *, comments: bool = False) -> tuple[dict[str, str], list[Failure]]:
    """Returns the texts of readable files by path, and a failure for every unreadable file.

    Args:
        comments: replace comments with blanks.
    """
    texts: dict[str, str] = {}
    failures = []
    for file in files:
        text = read_text(file, comments=comments)
        if isinstance(text, Failure):
            failures.append(text)
        else:
            texts[file if isinstance(file, str) else file.path] = text
    return texts, failures


def decode(data: bytes, path: str, *, comments: bool = False) -> str | Failure:
    """Returns the text of a schema file with the content `data`, or the failure to decode it.

    Args:
        path: name of the file, for messages and for its format.
        comments: replace comments with blanks.
    """
    other_format = OTHER_FORMATS.get(PurePath(path).suffix.lower())
    if other_format is not None:
        return Failure(FailureKind.INVALID, path, f"{other_format}; expected an Avro schema in JSON")
    if len(data) > FILE_BYTES_MAX:
        message = f"longer than {FILE_BYTES_MAX} bytes; expected an Avro schema in JSON"
        return Failure(FailureKind.INVALID, path, message, Position("", 1, 1))
    if not data.strip():
        message = "the file is empty; expected an Avro schema in JSON"
        return Failure(FailureKind.INVALID, path, message, Position("", 1, 1))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        return Failure(FailureKind.INVALID, path, *_describe_encoding_error(data, error))
    return blank_out_comments(text) if comments else text


def _describe_encoding_error(data: bytes, error: UnicodeDecodeError) -> tuple[str, Position]:
    """Returns a text that describes why the content of a file (`data`) is not UTF-8, and the position of the first
    invalid byte, which `error` gives as an offset."""
    before = data[: error.start]
    line_start = before.rfind(b"\n") + 1
    position = Position("", before.count(b"\n") + 1, len(before[line_start:].decode("utf-8")) + 1)
    found = "UTF-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else f"the byte 0x{data[error.start]:02x}"
    return f"not UTF-8 text (found {found}); expected an Avro schema in JSON", position


@dataclass(frozen=True, slots=True)
class WorkingDirectoryFiles:
    """The schema files on disk that may define a type which another file uses; implements `type_sets.TypeSource`.

    For an .avsc file only .avsc files are searched, because .json files next to it may be generated copies.

    Args:
        comments: ignore comments in the files.
    """

    comments: bool = False

    def siblings(self, path: str) -> Sequence[str]:
        directory = path.rpartition("/")[0]
        try:
            names = sorted(entry.name for entry in Path(path).parent.iterdir() if is_schema_name(entry.name))
        except OSError:
            return ()
        paths = [f"{directory}/{name}" if directory else name for name in names]
        return [other for other in paths if is_file(other)]

    def descendants(self, path: str, directory: str) -> Sequence[str]:
        """Returns the paths of the schema files below a directory that may define a type which the file `path` uses.

        Returns nothing for a `path` outside of the working directory, because its parent directories may be the whole
        disk.
        """
        if Path(path).is_absolute() or ".." in Path(path).parts:
            return ()
        found = [file.path for file in find_files([directory]).files]
        return found if is_json_name(path) else [other for other in found if is_schema_name(other)]

    def read(self, paths: Sequence[str]) -> Mapping[str, str]:
        return read_texts(paths[:FILES_MAX], comments=self.comments)[0]
