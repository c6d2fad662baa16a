"""Addresses of services, and the directory of tables: explicit settings, else a running `headrace up` on data_dir, else
defaults. Directory of the commit log: explicit settings, else defaults.

`headrace up` writes `<data_dir>/up.json` and holds an exclusive `flock` on it while it runs. A file without a lock was
left by a process that has ended, and is ignored.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.settings import Settings, SettingsError
from headrace.settings.masking import mask_repr

UP_FILE_NAME = "up.json"
SQL_SOCKET_NAME = "sql.sock"

REMOTE_SCHEMES = ("hdfs", "s3a")
# The path must not be the root of a file system, which others share. Hive tables store the complete URI, so the host is
# required. Percent-encoding is refused: Hadoop does not decode it, and other clients do.
REMOTE_URI = re.compile(r"(hdfs://[^/\s?#@%]+|s3a://[^/\s?#@%:]+)(/[^/\s?#%]+)+/?")


@dataclass(frozen=True, slots=True)
class RemoteDirectory:
    """A directory that Spark's JVM can access. `uri` is absolute and has no trailing slash."""

    uri: str

    @property
    def scheme(self) -> str:
        return urlsplit(self.uri).scheme

    def __str__(self) -> str:
        return self.uri


@dataclass(frozen=True, slots=True)
class LiveAddresses:
    """Addresses of the services that a running `headrace up` runs or uses; "" for others.

    `registry`, `console` and `gateway` are URLs; that of the registry may contain a password. `broker` and `sql`
    are host:port, `metastore` is a thrift:// URI, `sql_socket` is the path of the Unix socket that
    `headrace sql` connects to. `pid` is the process id of `headrace up`, `warehouse` the directory of the tables.
    `pids` are the process ids of its parts by their names; each part leads a process group. `load_interval_ms` is the
    time between its loads, 0 if it runs none.
    """

    pid: int
    started_at: str
    registry: str
    broker: str
    metastore: str
    sql: str
    sql_socket: str
    warehouse: str
    pids: Mapping[str, int] = field(default_factory=dict)
    load_interval_ms: int = 0
    console: str = ""
    gateway: str = ""


@dataclass(frozen=True, slots=True)
class UpFileContent:
    """The file `up.json`. `is_held` states whether a `headrace up` runs; it has no `addresses` while it starts. Without
    a holder, `addresses` are those of a `headrace up` that was killed."""

    is_held: bool
    addresses: LiveAddresses | None


def live_addresses(settings: Settings) -> LiveAddresses | None:
    """Returns the addresses of the services of the `headrace up` that runs on the settings' data directory. Returns
    None if none runs, if it is still starting, or if `up.json` cannot be read or parsed."""
    content = read_up_file(settings)
    return content.addresses if content is not None and content.is_held else None


def read_up_file(settings: Settings) -> UpFileContent | None:
    """Returns the content of `up.json`, also of one that a killed `headrace up` left. Returns None if the file does not
    exist or cannot be read."""
    try:
        descriptor = os.open(settings.data_dir / UP_FILE_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        return UpFileContent(_is_locked(descriptor), _parse(os.read(descriptor, 65536)))
    finally:
        os.close(descriptor)


def resolve_registry_url(settings: Settings) -> str:
    """Returns the registry's URL: the setting, else that of a running `headrace up`, else the address at which the
    settings let a registry listen."""
    if settings.registry.url:
        return settings.registry.url.rstrip("/")
    live = live_addresses(settings)
    scheme = "https" if settings.registry.tls_certificate else "http"
    return live.registry if live and live.registry else f"{scheme}://{settings.registry.listen}"


def resolve_bootstrap_servers(settings: Settings) -> str:
    """Returns the brokers' addresses in the form `host:port,…`: the setting, else that of a running `headrace up`, else
    the address at which the settings let a broker listen."""
    if settings.kafka.bootstrap_servers:
        return settings.kafka.bootstrap_servers
    live = live_addresses(settings)
    return live.broker if live and live.broker else str(settings.broker.listen)


def resolve_metastore(settings: Settings) -> str | None:
    """Returns the thrift:// URI of the metastore: the setting, else that of a running `headrace up`, else None for the
    Derby metastore in the data directory."""
    if settings.hive.metastore:
        return settings.hive.metastore
    live = live_addresses(settings)
    return live.metastore if live and live.metastore else None


def with_live_warehouse(settings: Settings) -> Settings:
    """Returns the settings with the warehouse of a running `headrace up` as `loader.warehouse`, unless that is set. A
    command resolves it once, because `headrace up` may end before the command does."""
    live = live_addresses(settings)
    if settings.loader.warehouse or live is None:
        return settings
    return replace(settings, loader=replace(settings.loader, warehouse=live.warehouse))


def sql_socket(settings: Settings) -> Path:
    """Returns the path of the Unix socket on which `headrace up` serves `headrace sql`."""
    return settings.data_dir.resolve() / SQL_SOCKET_NAME


def warehouse_location(settings: Settings) -> Path | RemoteDirectory:
    """Returns the directory of the tables' files.

    Raises:
        SettingsError: the file system is not supported, or the URI has no server, no directory or a character that is
            not allowed.
    """
    text = settings.loader.warehouse
    return _parse_location("loader.warehouse", text) if text else (settings.data_dir / "warehouse").resolve()


def state_location(settings: Settings) -> Path | RemoteDirectory | None:
    """Returns the directory of the commit log, or None if it is in the warehouse.

    Raises:
        SettingsError: as for `warehouse_location`.
    """
    return _parse_location("loader.state", settings.loader.state) if settings.loader.state else None


def local_warehouse_directory(settings: Settings) -> Path:
    """Returns the absolute path of the tables' files, for callers that need a local directory.

    Raises:
        SettingsError: the warehouse is not local, or its location is invalid.
    """
    directory = warehouse_location(settings)
    if isinstance(directory, RemoteDirectory):
        found = mask_repr("loader.warehouse", directory.uri)
        raise SettingsError(
            f"loader.warehouse: expected a local directory, found {found}; `headrace up` serves one machine: "
            "on a cluster, schedule `headrace load` with cron or Oozie"
        )
    return directory


def _parse_location(key: str, text: str) -> Path | RemoteDirectory:
    try:
        parts = urlsplit(text)
    except ValueError:  # a bracket is no part of an IPv6 address
        raise SettingsError(
            f"{key}: expected a local directory or a file://, hdfs:// or s3a:// URI, found {mask_repr(key, text)}"
        ) from None
    if parts.scheme in REMOTE_SCHEMES:
        if not REMOTE_URI.fullmatch(text):
            raise SettingsError(
                f"{key}: expected hdfs://host:port/directory or s3a://bucket/directory, found {mask_repr(key, text)}"
            )
        return RemoteDirectory(text.rstrip("/"))
    if parts.scheme not in ("", "file") or (parts.scheme == "file" and parts.netloc not in ("", "localhost")):
        raise SettingsError(
            f"{key}: expected a local directory or a file://, hdfs:// or s3a:// URI, found {mask_repr(key, text)}; "
            "other file systems are not supported in this release"
        )
    path = unquote(parts.path) if parts.scheme == "file" else text
    return Path(path).expanduser().resolve()


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _parse(content: bytes) -> LiveAddresses | None:
    """Returns the addresses in the content of `up.json`. Returns None if the content is not complete, because a
    `headrace up` that is starting has the lock but has not written the addresses, or if it has other keys."""
    try:
        document = json.loads(content)
    except ValueError:
        return None
    if not isinstance(document, Mapping):
        return None
    try:
        return LiveAddresses(**document)
    except TypeError:
        return None
