"""The format of export files: one JSON object per line, UTF-8, in this order.

| `kind` | other keys | lines |
|---|---|---|
| `header` | `fileType` ("schema registry export"), `format` (1) | the first |
| `context` | `context` | one per context with exported configuration and mode |
| `version` | `subject`, `version`, `id`, `schemaType`, `references`, `metadata`, `ruleSet`, `deleted`, `schema` | one \
per version, after those it refers to |
| `config` | `scope`, `config` | one per scope that has its own configuration |
| `mode` | `scope`, `mode` | one per scope that has its own mode |
| `end` | `lines`, `sha256` | the last; `lines` counts those before it, `sha256` is of their bytes |

A subject is qualified (`:.context:name`, or `name` in the default context). A scope is a subject, which may have no
version, or a context as `:.context:`. Values have the form that they have in the API. `references`, `metadata`,
`ruleSet` and `deleted` are omitted if empty or false. Equal content has equal bytes. If a file was edited, its `sha256`
must be removed; then only `lines` is checked, which detects a truncated file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Final

from headrace.registry.domain import LATEST, SCHEMA_ID_MAX, VERSION_MAX, Mode, SchemaReference, SubjectVersion
from headrace.registry.errors import ExportFileInvalid
from headrace.registry.transfer.snapshot import ExportedVersion, Snapshot, is_scope_of_context, json_text, scopes_of

FORMAT: Final = 1
FILE_TYPE: Final = "schema registry export"
LINE_BYTES_MAX: Final = 256 * 1024 * 1024  # registries accept no larger schema; the limit protects against other files


def write_snapshot(snapshot: Snapshot, out: BinaryIO) -> None:
    """Writes a snapshot to `out` in the format of an export file."""
    digest = hashlib.sha256()
    count = 0
    for line in _lines(snapshot):
        content = _encoded(line)
        digest.update(content)
        out.write(content)
        count += 1
    out.write(_encoded({"kind": "end", "lines": count, "sha256": digest.hexdigest()}))


def read_snapshot(source: BinaryIO, name: str) -> Snapshot:
    """Reads an export file into memory.

    Args:
        name: the name of the file, for messages.

    Raises:
        ExportFileInvalid: not an export file of this format, truncated, invalid in a line, or edited without removing
            the checksum.
    """
    reader = _Reader(name)
    for content in iter(lambda: source.readline(LINE_BYTES_MAX), b""):
        reader.read_line(content)
    return reader.snapshot()


def _lines(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    yield {"kind": "header", "fileType": FILE_TYPE, "format": FORMAT}
    for context in snapshot.contexts:
        yield {"kind": "context", "context": context}
    for version in snapshot.versions:
        yield {"kind": "version", **_version_object(version)}
    for scope in snapshot.scopes:
        if scope in snapshot.configs:
            yield {"kind": "config", "scope": scope, "config": json.loads(snapshot.configs[scope])}
    for scope in snapshot.scopes:
        if scope in snapshot.modes:
            yield {"kind": "mode", "scope": scope, "mode": snapshot.modes[scope]}


def _version_object(version: ExportedVersion) -> dict[str, Any]:
    line: dict[str, Any] = {
        "subject": version.subject,
        "version": version.version,
        "id": version.schema_id,
        "schemaType": version.schema_type,
        "references": [reference_object(item) for item in version.references],
        "metadata": json.loads(version.metadata or "null"),
        "ruleSet": json.loads(version.rule_set or "null"),
        "deleted": version.deleted,
        "schema": version.text,
    }
    return {key: value for key, value in line.items() if value or key in ("subject", "schema")}


def reference_object(reference: SchemaReference) -> dict[str, Any]:
    """A schema reference as the JSON object of the registry's API: name, subject and version."""
    return {"name": reference.name, "subject": reference.subject, "version": reference.version}


def _encoded(line: Mapping[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        # The text has half of a surrogate pair, which a JSON escape can represent and UTF-8 cannot.
        return json.dumps(line, separators=(",", ":")).encode() + b"\n"


class _Reader:
    """Parses the lines of one export file."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._digest = hashlib.sha256()
        self._number = 0
        self._ended = False
        self._contexts: dict[str, None] = {}
        self._versions: dict[SubjectVersion, ExportedVersion] = {}
        self._configs: dict[str, str] = {}
        self._modes: dict[str, str] = {}
        self._kinds: Mapping[str, Callable[[_Fields], None]] = {
            "context": self._read_context,
            "version": self._read_version,
            "config": self._read_config,
            "mode": self._read_mode,
            "end": self._read_end,
        }

    def read_line(self, content: bytes) -> None:
        self._number += 1
        if self._ended:
            raise self._invalid(
                'expected the line with "kind": "end" to be the last line of the file; export the registry again'
            )
        if not content.endswith(b"\n") and len(content) >= LINE_BYTES_MAX:
            raise self._invalid(f"expected lines of at most {LINE_BYTES_MAX} bytes")
        fields = _Fields(self._object(content))
        try:
            kind = fields.text("kind")
            if self._number == 1:
                self._read_header(kind, fields)
            elif kind in self._kinds:
                self._kinds[kind](fields)
            else:
                raise ValueError(f'expected "kind" to be one of {", ".join(self._kinds)}, found {kind!r}')
            fields.check_all_read()
        except ValueError as error:
            raise self._invalid(str(error)) from None
        self._digest.update(content)

    def snapshot(self) -> Snapshot:
        if self._number == 0:
            raise ExportFileInvalid(self._name, "expected a schema registry export, found an empty file")
        if not self._ended:
            raise ExportFileInvalid(
                self._name,
                f'the file is cut off after line {self._number}: it has no line with "kind": "end"; '
                "export the registry again",
            )
        snapshot = Snapshot(tuple(self._contexts), tuple(self._versions.values()), self._configs, self._modes)
        context_scopes = filter(is_scope_of_context, (*self._configs, *self._modes))
        known_scopes = scopes_of(snapshot.contexts, ())
        unknown_context = next((scope for scope in context_scopes if scope not in known_scopes), None)
        if unknown_context is not None:
            raise ExportFileInvalid(
                self._name,
                f"the file has a configuration or mode of {unknown_context!r}, but not this context itself; "
                "export the registry again",
            )
        return snapshot

    def _object(self, content: bytes) -> dict[str, Any]:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        if self._number == 1:
            raise ExportFileInvalid(self._name, "expected a schema registry export, found other content")
        cut = " (the file may be cut off; export the registry again)" if not content.endswith(b"\n") else ""
        raise self._invalid(f"expected this line to be one JSON object{cut}")

    def _read_header(self, kind: str, fields: _Fields) -> None:
        if kind != "header" or fields.text("fileType") != FILE_TYPE:
            raise ValueError(
                f'expected the first line to have "kind": "header" and "fileType": {FILE_TYPE!r}; '
                "choose a file that `headrace registry export` wrote"
            )
        number = fields.number("format", 2**31)
        if number != FORMAT:
            raise ValueError(
                f"the export file has format {number}, but this release reads format {FORMAT}; use a newer release"
            )

    def _read_context(self, fields: _Fields) -> None:
        _put(self._contexts, fields.text("context"), None, "context")

    def _read_version(self, fields: _Fields) -> None:
        version = fields.exported_version()
        _put(self._versions, version.key, version, f"{version.subject} version {version.version}")

    def _read_config(self, fields: _Fields) -> None:
        scope = fields.text("scope")
        _put(self._configs, scope, json_text(fields.mapping("config")) or "{}", f"configuration of {scope!r}")

    def _read_mode(self, fields: _Fields) -> None:
        scope, mode = fields.text("scope"), fields.text("mode")
        if mode not in Mode.__members__:
            raise ValueError(f'expected "mode" to be one of {", ".join(Mode)}, found {mode!r}')
        _put(self._modes, scope, mode, f"mode of {scope!r}")

    def _read_end(self, fields: _Fields) -> None:
        count, checksum = fields.number("lines", 2**53), fields.text("sha256", optional=True)
        if count != self._number - 1:
            raise ValueError(
                f"expected {count} lines before this one, found {self._number - 1}: the file is incomplete; "
                "export the registry again"
            )
        if checksum and checksum != self._digest.hexdigest():
            raise ValueError(
                "the file was edited after the export (sha256 differs); "
                'remove "sha256" from this line to import it anyway'
            )
        self._ended = True

    def _invalid(self, problem: str) -> ExportFileInvalid:
        return ExportFileInvalid(f"{self._name}:{self._number}", problem)


def _put(values: dict[Any, Any], key: Any, value: Any, name: str) -> None:
    if key in values:
        raise ValueError(f"{name} is duplicated")
    values[key] = value


class _Fields:
    """Reads the keys of one JSON object, each at most once. `check_all_read` rejects an object with other keys.

    Every method raises `ValueError` for a key that has a value of another type, or that is missing and not optional.
    """

    def __init__(self, line: Mapping[str, Any]) -> None:
        self._unread = dict(line)

    def check_all_read(self) -> None:
        if self._unread:
            raise ValueError(f"unknown key {next(iter(self._unread))!r}")

    def text(self, key: str, *, optional: bool = False) -> str:
        value = self._unread.pop(key, "" if optional else None)
        if not isinstance(value, str):
            raise ValueError(f"expected {key!r} to be a string, found {_shown(value)}")
        return value

    def number(self, key: str, maximum: int, minimum: int = 1) -> int:
        value = self._unread.pop(key, None)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
            raise ValueError(
                f"expected {key!r} to be a whole number from {minimum} to {maximum}, found {_shown(value)}"
            )
        return value

    def mapping(self, key: str, *, optional: bool = False) -> Mapping[str, Any]:
        value = self._unread.pop(key, {} if optional else None)
        if not isinstance(value, dict):
            raise ValueError(f"expected {key!r} to be an object, found {_shown(value)}")
        return value

    def exported_version(self) -> ExportedVersion:
        """Parses the JSON object as a version, as it is in a line of an export file or in the response to `GET
        /schemas`."""
        deleted = self._unread.pop("deleted", False)
        if not isinstance(deleted, bool):
            raise ValueError(f"expected 'deleted' to be true or false, found {_shown(deleted)}")
        return ExportedVersion(
            self.text("subject"),
            self.number("version", VERSION_MAX),
            self.number("id", SCHEMA_ID_MAX),
            self.text("schema"),
            self.text("schemaType", optional=True) or "AVRO",
            tuple(self._references()),
            json_text(_with_sorted_lists(self.mapping("metadata", optional=True))),
            json_text(self.mapping("ruleSet", optional=True)),
            deleted,
        )

    def _references(self) -> Iterable[SchemaReference]:
        values = self._unread.pop("references", [])
        if not isinstance(values, list):
            raise ValueError(f"expected 'references' to be a list, found {_shown(values)}")
        for value in values:
            if not isinstance(value, dict):
                raise ValueError(f"expected a reference to be an object, found {_shown(value)}")
            fields = _Fields(value)
            yield SchemaReference(
                fields.text("name"), fields.text("subject"), fields.number("version", VERSION_MAX, LATEST)
            )
            fields.check_all_read()


def parse_version_object(response: Mapping[str, Any]) -> ExportedVersion:
    """Parses a version from a JSON object of the registry's API; unknown keys and keys with null values are ignored.
    The API omits empty values, so a version without a subject is one of the subject with the empty name.

    Raises:
        ValueError: the object is not a version.
    """
    present = {key: value for key, value in response.items() if value is not None}
    return _Fields({"subject": "", **present}).exported_version()


def _with_sorted_lists(value: Any) -> Any:
    """Returns a copy of a schema's metadata (a JSON value) with sorted lists, so that equal metadata are written
    equally: their lists (tags, sensitive properties) are sets."""
    if isinstance(value, dict):
        return {key: _with_sorted_lists(item) for key, item in value.items()}
    return sorted(value, key=json_text) if isinstance(value, list) else value


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
