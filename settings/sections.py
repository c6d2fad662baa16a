"""The one place where configuration is read.

`load_settings` folds defaults, a TOML file, the environment and flags into one frozen `Settings`, later ones
winning. Rooms receive their section and never read the environment. Unknown keys are errors, so that a misspelt
setting cannot be ignored in silence.

Keys are written `<section>.<key>`; in the environment `HEADRACE__<SECTION>__<KEY>`. Two underscores, because
Kubernetes fills the environment with single-underscore names of its own.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ENVIRONMENT_PREFIX = "HEADRACE__"
CONFIG_FILE_NAME = "headrace.toml"
CONFIG_PATH_VARIABLE = "HEADRACE_CONFIG"
SECRET_KEYS = frozenset({"database_url", "url", "client_token"})
"""Keys whose values may hold a password, besides those that say so in their name: never printed whole."""


class SettingsError(Exception):
    """A setting that cannot be used; the message names the key, where it was set and what was expected."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port; port 0 asks the system for a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Reads `host:port`, `:port` (loopback) or `[v6]:port`.

        Raises:
            ValueError: the text is none of these.
        """
        match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})", text.strip())
        if match is None or int(match["port"]) > 65535:
            raise ValueError("expected host:port with a port between 0 and 65535")
        return cls(match["v6"] or match["host"] or "127.0.0.1", int(match["port"]))


@dataclass(frozen=True, slots=True)
class Duration:
    """A span of time; written `10m`, `90s`, `500ms`, `2h` or `7d`."""

    ms: int

    _UNITS: typing.ClassVar[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

    def __str__(self) -> str:
        for unit in ("d", "h", "m", "s"):
            if self.ms and self.ms % self._UNITS[unit] == 0:
                return f"{self.ms // self._UNITS[unit]}{unit}"
        return f"{self.ms}ms"

    @property
    def seconds(self) -> float:
        return self.ms / 1000

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Reads a number with one of the units ms, s, m, h, d.

        Raises:
            ValueError: the text is not such a duration.
        """
        match = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|h|d)", text.strip())
        if match is None:
            raise ValueError("expected a whole number with a unit, such as 10m, 90s, 500ms, 2h or 7d")
        return cls(int(match[1]) * cls._UNITS[match[2]])


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    listen: Address = Address("127.0.0.1", 8081)
    database_url: str = ""  # SQLAlchemy URL; "" is SQLite in data_dir/registry.db
    database_connections: int = 10  # of each process to PostgreSQL at most; looks at revisions and ids take two more
    url: str = ""  # for clients; several by comma, first preferred; "": a live `headrace up` on data_dir, else `listen`
    client_user: str = ""  # with which producers, consumers, load and audit go to the registry; "": with none
    client_password: str = ""  # of that user
    client_token: str = ""  # bearer token, instead of a user
    client_token_file: str = ""  # file that holds the bearer token and is read before every request
    client_ca: str = ""  # PEM file of the authorities to trust on https; "": those of the system
    client_certificate: str = ""  # PEM file of the certificate to show on https
    client_key: str = ""  # PEM file of its key; "": the key is in `client_certificate`
    client_key_password: str = ""  # of an encrypted key
    client_timeout: Duration = Duration(10_000)  # of a connection attempt and of each wait for an answer
    compatibility: str = "BACKWARD"  # level of subjects that have none of their own
    api_profile: int = 8  # release of the Confluent Schema Registry whose bodies are answered; 7 for clients before 7.0
    rules: str = "keep"  # keep | drop: rule sets in requests; dropped, as by the community edition, they change no id
    mode_changes: str = "allow"  # allow | refuse: whether clients may change modes, as READONLY and IMPORT are
    request_bytes_max: int = 4 * 1024 * 1024  # body of one request; its schema may have half as many characters
    workers: int = 1  # processes that serve; more than the cores that they may use does not help
    users: str = ""  # file of users and what each may do; "": whoever reaches the registry may do everything
    open_to: str = "loopback"  # loopback | network: where a registry without `users` may listen
    tls_certificate: str = ""  # PEM file of the certificate, with its chain, that is served with; "": plain HTTP
    tls_key: str = ""  # PEM file of its key, not encrypted; "": the key is in `tls_certificate`
    access_log: str = ""  # file that gets a line of JSON for each request; "-" is standard error, "" no log


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    listen: Address = Address("127.0.0.1", 9092)
    partitions: int = 4  # of a topic created by its first message
    retention: Duration = Duration(7 * 86_400_000)  # by record timestamp, like Kafka's retention.ms
    segment_bytes_max: int = 1024 * 1024 * 1024  # of one log file; retention deletes whole files
    message_bytes_max: int = 1_048_588  # one record batch, Kafka's default
    fsync: str = "interval"  # none | interval | always: when appended batches are forced to disk


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    bootstrap_servers: str = ""  # host:port,…; "" is a live `headrace up` on the same data_dir, else broker.listen


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    warehouse: str = ""  # folder or file:// URI; "" is data_dir/warehouse
    tasks: int = 0  # size of the fixed pool; 0 is the number of cores
    interval: Duration = Duration(600_000)  # between the scheduled loads of `headrace up`, aligned to the clock
    partition_by: str = "hour"  # hour (dt and hr) | day (dt alone)
    topics_include: tuple[str, ...] = (".*",)  # regular expressions matched against whole topic names
    topics_exclude: tuple[str, ...] = ()  # applied after include; `__*` and `_schemas` are always left out
    time_fields: tuple[str, ...] = ("header.time", "timestamp")  # the first that exists gives the message time
    codec: str = "snappy"  # Avro codec of the files: null | deflate | snappy
    file_bytes_target: int = 256 * 1024 * 1024  # a partition is split over tasks only above this
    range_bytes_max: int = 4 * 1024 * 1024 * 1024  # cap of what one run reads from one partition
    kafka_column: str = "position"  # none | position | full: what each row says of where it came from
    quarantine_share_max: float = 0.1  # of a topic's messages in one run; beyond it (and 100 messages) the topic fails
    lost_ground: str = "fail"  # fail | earliest: when offsets vanished before they were read
    staging_age: Duration = Duration(7 * 86_400_000)  # undecided staging older than this is offered for cleaning


@dataclass(frozen=True, slots=True)
class HiveSettings:
    database: str = "headrace"
    metastore: str = ""  # thrift://host:port; "" is a live `headrace up` on the same data_dir, else Derby in data_dir
    listen: Address = Address("127.0.0.1", 9083)  # metastore endpoint served by `headrace up`
    executor: str = "spark"  # spark changes the tables; print only shows the statements
    literal_chars_max: int = 30_000  # a longer table schema goes to avro.schema.url


@dataclass(frozen=True, slots=True)
class SqlSettings:
    listen: Address | None = (
        None  # SQL endpoint served by `headrace up`; None is off, since whoever reaches it runs code
    )


@dataclass(frozen=True, slots=True)
class AuditSettings:
    grace: Duration = Duration(1_800_000)  # after a window's end before a missing count is called short
    topic: str = "headrace.audit"  # where producers and consumers publish their counts


@dataclass(frozen=True, slots=True)
class CompatSettings:
    schemas: tuple[str, ...] = ()  # files, patterns and folders that are checked when the command names none
    types: tuple[str, ...] = ()  # files and folders of types that schemas use, which are not checked themselves
    allow_comments: bool = False  # comments in schema files are read past, as Avro Java does
    against: tuple[str, ...] = ()  # baseline: git:REF[:path], registry, a URL, a folder, or files, oldest first
    level: str = ""  # a level for all; "": the subject's own in a registry, else BACKWARD
    all_versions: bool = False  # compare with every earlier version, as the _TRANSITIVE levels do
    require_subject: bool = False  # a schema without an earlier version fails
    subject_strategy: str = "topic"  # topic | record | topic-record | file: how a file's subject is named
    subjects: Mapping[str, str] = field(default_factory=dict)  # pattern of a path = subject, before the strategy
    lints: tuple[str, ...] = ()  # rules beyond compatibility that are asked for, or all; NAME=error, =warning or =off
    suppressions: tuple[Mapping[str, Any], ...] = ()  # tables of rule, path, subject, field, reason, expires
    baseline: str = ""  # file of known findings that do not count


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path = Path("headrace-data")
    registry: RegistrySettings = RegistrySettings()
    broker: BrokerSettings = BrokerSettings()
    kafka: KafkaSettings = KafkaSettings()
    loader: LoaderSettings = LoaderSettings()
    hive: HiveSettings = HiveSettings()
    sql: SqlSettings = SqlSettings()
    audit: AuditSettings = AuditSettings()
    compat: CompatSettings = CompatSettings()
    spark: Mapping[str, str] = field(default_factory=lambda: types.MappingProxyType({"master": "local[*]"}))
    # `master`, and any spark.* property without its prefix, passed through to Spark

    def masked(self) -> dict[str, dict[str, str] | str]:
        """All values as text for people, with passwords hidden."""
        shown: dict[str, dict[str, str] | str] = {}
        for section in dataclasses.fields(self):
            value = getattr(self, section.name)
            if dataclasses.is_dataclass(value):
                shown[section.name] = {
                    key.name: _masked(key.name, getattr(value, key.name)) for key in dataclasses.fields(value)
                }
            elif isinstance(value, Mapping):
                shown[section.name] = {str(key): _masked(str(key), item) for key, item in value.items()}
            else:
                shown[section.name] = str(value)
        return shown

    def __repr__(self) -> str:
        return f"Settings({self.masked()})"


CHOICES: Mapping[str, tuple[str, ...]] = {
    "registry.compatibility": (
        "NONE",
        "BACKWARD",
        "BACKWARD_TRANSITIVE",
        "FORWARD",
        "FORWARD_TRANSITIVE",
        "FULL",
        "FULL_TRANSITIVE",
    ),
    "registry.api_profile": ("7", "8"),
    "registry.rules": ("keep", "drop"),
    "registry.mode_changes": ("allow", "refuse"),
    "registry.open_to": ("loopback", "network"),
    "broker.fsync": ("none", "interval", "always"),
    "loader.partition_by": ("hour", "day"),
    "loader.codec": ("null", "deflate", "snappy"),
    "loader.kafka_column": ("none", "position", "full"),
    "loader.lost_ground": ("fail", "earliest"),
    "hive.executor": ("spark", "print"),
    "compat.subject_strategy": ("topic", "record", "topic-record", "file"),
}
"""Settings that take one of a few words."""

AT_LEAST: Mapping[str, int] = {
    "registry.request_bytes_max": 1024,
    "registry.database_connections": 1,
    "broker.partitions": 1,
    "broker.segment_bytes_max": 1024 * 1024,
    "broker.message_bytes_max": 1024,
    "loader.tasks": 0,
    "loader.file_bytes_target": 1024 * 1024,
    "loader.range_bytes_max": 1024 * 1024,
    "hive.literal_chars_max": 1024,
}


def load_settings(
    *,
    flags: Mapping[str, str] | None = None,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
    home: Path | None = None,
) -> Settings:
    """Returns the settings in force.

    Args:
        flags: dotted key to text, from the command line; they win over everything.
        config: the file named by `--config`; it must exist. Without it the variable HEADRACE_CONFIG, then
            `headrace.toml` in `working_dir`, then `~/.config/headrace/headrace.toml` are looked at.
        environment: usually `os.environ`.
        working_dir: usually the current folder.
        home: usually the user's home folder.

    Raises:
        SettingsError: a file that cannot be read, an unknown key or a value that does not fit.
    """
    environment = environment or {}
    layers: list[tuple[str, Mapping[str, Any]]] = []
    path = _find_config(config, environment, working_dir or Path(), home)
    if path is not None:
        layers.append((str(path), _flatten(_read_toml(path))))
    layers.append(
        (
            "the environment",
            {
                ".".join(name[len(ENVIRONMENT_PREFIX) :].lower().split("__")): value
                for name, value in environment.items()
                if name.startswith(ENVIRONMENT_PREFIX)
            },
        )
    )
    layers.append(("the command line", flags or {}))
    merged: dict[str, tuple[str, Any]] = {}
    for origin, values in layers:
        for key, value in values.items():
            merged[key] = (origin, value)
    return _build(merged)


def _masked(key: str, value: Any) -> str:
    if is_secret(key):
        return _without_passwords(str(value)) if "://" in str(value) else "***" if value else ""
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value) if value or not isinstance(value, Mapping) else ""


def is_secret(key: str) -> bool:
    name = key.rpartition(".")[2]
    return name in SECRET_KEYS or "password" in key or "secret" in key


def _without_passwords(urls: str) -> str:
    """URLs with what stands between user and host hidden, also where a password has an unescaped `@` or `/`."""
    parts = re.split(r",(?=\w+://)", urls)
    return ",".join(re.sub(r"//([^:/@]*):.*@", r"//\1:***@", part) for part in parts)


def _find_config(
    config: Path | None, environment: Mapping[str, str], working_dir: Path, home: Path | None
) -> Path | None:
    named = config or (Path(environment[CONFIG_PATH_VARIABLE]) if environment.get(CONFIG_PATH_VARIABLE) else None)
    if named is not None:
        return named
    candidates = [working_dir / CONFIG_FILE_NAME]
    if home is not None:
        candidates.append(home / ".config" / "headrace" / CONFIG_FILE_NAME)
    return next((path for path in candidates if path.is_file()), None)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}") from error


def _flatten(document: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            if key == "spark":
                flat.update({f"spark.{name}": item for name, item in _flatten_names(value).items()})
            else:
                flat.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            flat[key] = value
    return flat


def _flatten_names(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Spark's own property names have dots, which TOML reads as nested tables."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flatten_names(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


_SECTIONS: Mapping[str, type] = {
    "registry": RegistrySettings,
    "broker": BrokerSettings,
    "kafka": KafkaSettings,
    "loader": LoaderSettings,
    "hive": HiveSettings,
    "sql": SqlSettings,
    "audit": AuditSettings,
    "compat": CompatSettings,
}


def _build(merged: Mapping[str, tuple[str, Any]]) -> Settings:
    chosen: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    spark: dict[str, str] = {"master": "local[*]"}
    data_dir = Settings().data_dir
    for key, (origin, value) in merged.items():
        section, _, name = key.partition(".")
        if key == "data_dir":
            data_dir = Path(_text(key, origin, value)).expanduser()
        elif section == "spark" and name:
            spark[name] = _spark_text(value)
        elif section in _SECTIONS and name in _field_types(_SECTIONS[section]):
            chosen[section][name] = _convert(key, origin, value, _field_types(_SECTIONS[section])[name])
        else:
            raise SettingsError(f"unknown setting {key!r} in {origin}; known settings: {', '.join(known_keys())}")
    sections = {name: cls(**chosen[name]) for name, cls in _SECTIONS.items()}
    return Settings(data_dir=data_dir, spark=types.MappingProxyType(spark), **sections)


def known_keys() -> Sequence[str]:
    """Every key that a file may set, except those of `spark`, which are Spark's own."""
    return ["data_dir", *(f"{name}.{key}" for name, cls in _SECTIONS.items() for key in _field_types(cls)), "spark.*"]


def _field_types(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def _spark_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(key: str, origin: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{key} in {origin}: expected text, found {value!r}")
    return value


def _convert(key: str, origin: str, value: Any, wanted: Any) -> Any:
    try:
        result = _converted(value, wanted)
    except ValueError as error:
        shown = "***" if is_secret(key) else repr(value)
        raise SettingsError(f"{key} in {origin}: {error}, found {shown}") from error
    if key in CHOICES and str(result) not in CHOICES[key]:
        raise SettingsError(f"{key} in {origin}: expected one of {', '.join(CHOICES[key])}, found {value!r}")
    if key in AT_LEAST and result < AT_LEAST[key]:
        raise SettingsError(f"{key} in {origin}: expected at least {AT_LEAST[key]}, found {value!r}")
    if key == "loader.quarantine_share_max" and not 0.0 <= result <= 1.0:
        raise SettingsError(f"{key} in {origin}: expected a share between 0 and 1, found {value!r}")
    return result


def _converted(value: Any, wanted: Any) -> Any:
    if wanted == Address | None:
        return None if value in ("", "off") else _converted(value, Address)
    if wanted in (Address, Duration):
        if not isinstance(value, str):
            raise ValueError("expected text")
        return wanted.parse(value)
    if wanted is int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}", str(value)):
            raise ValueError("expected a whole number")
        return int(value)
    if wanted is float:
        if isinstance(value, bool):
            raise ValueError("expected a number")
        return float(value)
    if wanted == tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError("expected a list of texts")
        return tuple(item.strip() for item in items if item.strip())
    if wanted is bool:
        if str(value).lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return str(value).lower() == "true"
    if wanted == Mapping[str, str]:
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            raise ValueError("expected a table of texts")
        return dict(value)
    if wanted == tuple[Mapping[str, Any], ...]:
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise ValueError("expected tables")
        return tuple(value)
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value
