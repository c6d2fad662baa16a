"""The configuration of `headrace push`: a TOML file, or on Python 3.9 and 3.10, which cannot read TOML, a JSON file
with the same keys."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlsplit

CHUNK_BYTES = 262_144
LINE_BYTES_MAX = 1_048_576
FORMATS = ("lines", "json")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)\Z")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class PushError(Exception):
    """Ends the command with one line that names the object, the problem and the remedy."""


@dataclass(frozen=True)
class FileRule:
    """Files to tail, and the destination and format of their lines.

    Attributes:
        paths: absolute glob patterns. `*` does not match a leading dot or a slash.
        exclude: patterns of file names.
        topic: the topic, or None if the gateway finds it by `log_type`.
        start_pattern: a line that matches it begins a record; the lines after it belong to it. None: every line is a
            record.
        olddir: directory of rotated files, if it is not that of the file.
    """

    paths: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    topic: Optional[str] = None
    log_type: Optional[str] = None
    format: str = "lines"
    start_pattern: Optional[str] = None
    olddir: Optional[str] = None

    def excludes(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.exclude)


@dataclass(frozen=True)
class PushConfig:
    """All settings of the client. Times are in seconds.

    Attributes:
        gateways: base URLs; the next one is used after a connection failed.
        partial_after_s: sends a last line without a line end after this time without growth; 0 waits for the line end.
        deleted_after_s: closes a deleted file that was read to its end after this time without growth.
        forget_after_s: removes the position of a file from the state this long after the file disappeared.
    """

    gateways: tuple[str, ...]
    state_dir: Path
    rules: tuple[FileRule, ...]
    host: str
    host_id: Optional[str] = None
    user: Optional[str] = None
    password_file: Optional[Path] = None
    token_file: Optional[Path] = None
    ca: Optional[Path] = None
    certificate: Optional[Path] = None
    key: Optional[Path] = None
    timeout_s: float = 30.0
    retry_s: float = 0.5
    retry_max_s: float = 30.0
    poll_s: float = 0.1
    scan_s: float = 1.0
    state_s: float = 1.0
    multiline_after_s: float = 1.0
    partial_after_s: float = 0.0
    deleted_after_s: float = 300.0
    forget_after_s: float = 604_800.0
    chunk_bytes: int = CHUNK_BYTES
    line_bytes_max: int = LINE_BYTES_MAX
    buffer_bytes: int = 4_194_304

    def __post_init__(self) -> None:
        if self.line_bytes_max < self.chunk_bytes:
            raise PushError("push.line_bytes_max: must be at least push.chunk_bytes; raise it")
        if self.chunk_bytes < 16:
            raise PushError("push.chunk_bytes: must be at least 16")


_PUSH_KEYS = {
    "gateway": "text or texts",
    "state_dir": "path",
    "host": "text",
    "host_id": "text",
    "user": "text",
    "password_file": "path",
    "token_file": "path",
    "ca": "path",
    "certificate": "path",
    "key": "path",
    "timeout": "time",
    "retry": "time",
    "retry_max": "time",
    "poll": "time",
    "scan": "time",
    "state": "time",
    "multiline_after": "time",
    "partial_after": "time",
    "deleted_after": "time",
    "forget_after": "time",
    "chunk_bytes": "size",
    "line_bytes_max": "size",
    "buffer_bytes": "size",
}
_FILE_KEYS = {
    "paths": "text or texts",
    "exclude": "text or texts",
    "topic": "text",
    "log_type": "text",
    "format": "text",
    "start_pattern": "text",
    "olddir": "text",
}


def read_config(path: Path) -> PushConfig:
    """Returns the configuration in a file.

    Raises:
        PushError: the file cannot be read, is not TOML or JSON, or has a wrong or unknown key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise PushError(f"{path}: cannot be read: {reason}; check --config") from error
    return parse_config(_parse_text(path, text), str(path), path.absolute().parent)


def _parse_text(path: Path, text: str) -> Mapping[str, Any]:
    try:
        if path.suffix == ".json":
            found = json.loads(text)
        else:
            import tomllib

            found = tomllib.loads(text)
    except ModuleNotFoundError as error:
        raise PushError(
            f"{path}: this Python has no TOML reader; use Python 3.11, or a .json file with the same keys"
        ) from error
    except ValueError as error:
        raise PushError(f"{path}: not valid: {error}") from error
    if not isinstance(found, dict):
        raise PushError(f"{path}: expected an object with the keys push and files")
    return found


def parse_config(found: Mapping[str, Any], origin: str, directory: Path) -> PushConfig:
    """Returns the configuration of a parsed file. Relative paths belong to `directory`, that of the file."""
    unknown = sorted(set(found) - {"push", "files"})
    if unknown:
        raise PushError(f"{origin}: unknown key {unknown[0]}; the file has the table [push] and tables [[files]]")
    push = _checked(found.get("push", {}), _PUSH_KEYS, f"{origin}: push")
    if "gateway" not in push:
        raise PushError(f'{origin}: push.gateway is missing; set it, for example gateway = "http://gateway:8082"')
    gateways = tuple(_gateway(url, origin) for url in push.pop("gateway"))
    if not gateways:
        raise PushError(f"{origin}: push.gateway is empty; name at least one URL")
    tables = found.get("files", [])
    if not isinstance(tables, list) or not tables:
        raise PushError(f"{origin}: no files; add a table [[files]] with paths and topic")
    rules = tuple(_rule(table, f"{origin}: files[{at}]", directory) for at, table in enumerate(tables))
    known = {field.name for field in fields(PushConfig)}
    values = {name if name in known else f"{name}_s": value for name, value in push.items()}
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = directory / value
    values.setdefault("state_dir", Path("/var/lib/headrace-push"))
    values.setdefault("host", os.uname().nodename)
    if ("password_file" in values) != ("user" in values):
        raise PushError(f"{origin}: push.user and push.password_file belong together; set both or neither")
    return PushConfig(gateways=gateways, rules=rules, **values)


def _gateway(url: str, origin: str) -> str:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or parts.query or parts.username:
        raise PushError(
            f"{origin}: push.gateway: {url.rpartition('@')[2]} is no URL of a gateway; use http://HOST:PORT, and "
            "push.user for credentials"
        )
    return url.rstrip("/")


def _rule(table: Any, origin: str, directory: Path) -> FileRule:
    values = _checked(table, _FILE_KEYS, origin)
    if not values.get("paths"):
        raise PushError(f"{origin}: paths is missing; name at least one file or pattern")
    if "topic" not in values and "log_type" not in values:
        raise PushError(f"{origin}: topic is missing; set topic, or log_type for a topic by the gateway's rules")
    if values.get("format", "lines") not in FORMATS:
        raise PushError(f"{origin}: format: expected one of {', '.join(FORMATS)}, found {values['format']}")
    if "start_pattern" in values:
        try:
            re.compile(values["start_pattern"].encode())
        except re.error as error:
            raise PushError(f"{origin}: start_pattern: not a regular expression: {error}") from error
    values["paths"] = tuple(str(directory / path) for path in values["paths"])
    if "olddir" in values:
        values["olddir"] = str(directory / values["olddir"])
    return FileRule(**values)


def _checked(table: Any, keys: Mapping[str, str], origin: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise PushError(f"{origin}: expected a table")
    for name in table:
        if name not in keys:
            raise PushError(f"{origin}: unknown key {name}; known are {', '.join(keys)}")
    return {name: _value(value, keys[name], f"{origin}: {name}") for name, value in table.items()}


def _value(value: Any, kind: str, origin: str) -> Any:
    if kind == "text or texts":
        values = [value] if isinstance(value, str) else value
        if isinstance(values, list) and all(isinstance(item, str) and item for item in values):
            return tuple(values)
    elif kind == "size":
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    elif kind == "time":
        matched = _TIME.match(value) if isinstance(value, str) else None
        if matched:
            return float(matched[1]) * _SECONDS[matched[2]]
        kind = "time such as 500ms, 30s, 5m"
    elif isinstance(value, str) and value:
        return Path(value) if kind == "path" else value
    raise PushError(f"{origin}: expected {kind}, found {value!r}")
