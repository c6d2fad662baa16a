"""Reads settings from a TOML file, the environment and flags; later sources override earlier ones.

`load_settings` returns one frozen `Settings`. Commands call it, processes that they start, and producers and consumers
without settings; other code receives a section. Unknown keys are errors, so that a misspelt setting is not ignored;
only the names of Spark's properties are not checked.

Keys are written `<section>.<key>`, in the environment `HEADRACE__<SECTION>__<KEY>`; `data_dir` has no section. The two
underscores distinguish them from the variables that Kubernetes sets, such as `HEADRACE_BROKER_PORT`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace.settings.log_format import FORMAT_VARIABLE, LEVEL_VARIABLE
from headrace.settings.masking import mask_repr
from headrace.settings.sections import (
    AT_LEAST,
    AT_MOST,
    CHOICES,
    PATTERNS,
    TOPIC_KEYS,
    AlertsSettings,
    AuditSettings,
    BrokerSettings,
    CompatSettings,
    ConsoleSettings,
    GatewaySettings,
    HiveSettings,
    KafkaSettings,
    LoaderSettings,
    RegistrySettings,
    Settings,
    SqlSettings,
    TopicTable,
)
from headrace.settings.values import Address, Duration

ENVIRONMENT_PREFIX = "HEADRACE__"
CONFIG_FILE_NAME = "headrace.toml"
CONFIG_PATH_VARIABLE = "HEADRACE_CONFIG"
VARIABLES = (CONFIG_PATH_VARIABLE, LEVEL_VARIABLE, FORMAT_VARIABLE)  # variables that set no settings key
# difflib's similarity ratio above which a variable counts as misspelt: transposed letters or one extra word.
# HEADRACE_LOG_DIR is below it.
VARIABLE_SIMILARITY_MIN = 0.85
# Suffixes of the variables that Kubernetes sets for each service.
KUBERNETES_VARIABLE = re.compile(r"_(?:SERVICE_HOST|(?:SERVICE_)?PORT(?:_[A-Z0-9_]+)?)$")
ENVIRONMENT = "the environment"
COMMAND_LINE = "the command line"
EXECUTORS = re.compile(r"spark|print|hive://[^/@:?#\s]+:\d{1,5}")


class SettingsError(Exception):
    """A setting or its source cannot be used: an invalid value, an unknown key, or a file that cannot be read. The
    message names the key, variable or file."""


def home_directory() -> Path | None:
    """Returns the user's home directory, or None: a container may run with a user id that has no name and no HOME."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def user_state_directory() -> Path | None:
    """Returns the directory for files of the user that survive the process: XDG_STATE_HOME or ~/.local/state; None if
    that variable is not set and there is no home directory."""
    state, home = os.environ.get("XDG_STATE_HOME", ""), home_directory()
    if state:
        return Path(state)
    return None if home is None else home / ".local" / "state"


def load_settings(
    *,
    flags: Mapping[str, str] | None = None,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
    home: Path | None = None,
) -> Settings:
    """Returns the effective settings.

    Args:
        flags: dotted key to text, from the command line; they override all other sources.
        config: the file named by `--config`. Without it the file is the one named by HEADRACE_CONFIG, else
            `headrace.toml` in `working_dir`, else `.config/headrace/headrace.toml` in `home`. A named file must exist.
        environment: usually `os.environ`.
        working_dir: usually the current directory.
        home: usually the user's home directory; None without one.

    Raises:
        SettingsError: unreadable file, unknown key, misspelt variable or invalid value.
    """
    found = _find_values(flags or {}, config, environment or {}, working_dir or Path(), home)
    return _build(found)


def setting_origins(
    *,
    flags: Mapping[str, str] | None = None,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    working_dir: Path | None = None,
    home: Path | None = None,
) -> Mapping[str, str]:
    """Returns for each explicitly set key the source of its value as text: the path of the settings file, `the
    environment` or `the command line`.

    Args:
        flags: dotted key to text, from the command line.
        config: the file named by `--config`; None means the file that `load_settings` would find.
        environment: usually `os.environ`.
        working_dir: usually the current directory.
        home: usually the user's home directory.

    Raises:
        SettingsError: unreadable file or misspelt variable.
    """
    found = _find_values(flags or {}, config, environment or {}, working_dir or Path(), home)
    return {key: origin for key, (origin, _) in found.values.items()}


@dataclass(frozen=True, slots=True)
class _SourcedValues:
    """The values of settings before they are parsed, with their sources.

    Attributes:
        values: source and raw value by key.
        file: the settings file, if there is one.
        from_working_directory: keys whose value comes from a settings file that was found in the working directory.
    """

    values: Mapping[str, tuple[str, Any]]
    file: Path | None
    from_working_directory: frozenset[str]


def _find_values(
    flags: Mapping[str, str],
    config: Path | None,
    environment: Mapping[str, str],
    working_dir: Path,
    home: Path | None,
) -> _SourcedValues:
    _refuse_misspelt_variables(environment)
    layers: list[tuple[str, Mapping[str, Any]]] = []
    path = _find_config(config, environment, working_dir, home)
    if path is not None:
        layers.append((str(path), _flatten(_read_toml(path))))
    named = {
        ".".join(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX)
    }
    layers += [(ENVIRONMENT, named), (COMMAND_LINE, flags)]
    merged: dict[str, tuple[str, Any]] = {}
    for origin, values in layers:
        for key, value in values.items():
            merged[key] = (origin, value)
    # A file that the user named and the file in the home directory are trusted; one found in the working directory is
    # not.
    is_named = config is not None or bool(environment.get(CONFIG_PATH_VARIABLE))
    is_in_working_directory = not is_named and path == working_dir / CONFIG_FILE_NAME
    untrusted = (key for key, (origin, _) in merged.items() if is_in_working_directory and origin == str(path))
    return _SourcedValues(merged, path, frozenset(untrusted))


def _refuse_misspelt_variables(environment: Mapping[str, str]) -> None:
    """Raises SettingsError for an environment variable that begins with HEADRACE_ and looks like a misspelling of a
    variable that Headrace reads.

    Other programs may use variables that begin with HEADRACE_, so dissimilar names are ignored; so are the variables
    that Kubernetes sets for services, and names that begin with HEADRACE__, which are read as keys.
    """
    correct_names = {
        f"HEADRACE_{key}".replace(".", "_").upper(): f"{ENVIRONMENT_PREFIX}{key.replace('.', '__').upper()}"
        for key in known_keys()
    }
    for name in environment:
        if name in VARIABLES or not name.startswith("HEADRACE_") or name.startswith(ENVIRONMENT_PREFIX):
            continue
        near = correct_names.get(name.replace("__", "_")) or next(
            iter(difflib.get_close_matches(name, VARIABLES, n=1, cutoff=VARIABLE_SIMILARITY_MIN)), ""
        )
        if near and not KUBERNETES_VARIABLE.search(name):
            raise SettingsError(f"unknown variable {name!r} in {ENVIRONMENT}; did you mean {near}?")


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
    """Returns the values of a nested TOML table by dotted name, each with `prefix` before it: TOML reads the dots in
    the names of Spark's properties as nesting."""
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
    "console": ConsoleSettings,
    "gateway": GatewaySettings,
    "alerts": AlertsSettings,
    "compat": CompatSettings,
}


def _build(found: _SourcedValues) -> Settings:
    chosen: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    spark: dict[str, str] = {"master": "local[*]"}
    data_dir, file, merged = Settings().data_dir, found.file, found.values
    if file is not None:
        # The default data_dir is relative to the settings file, so that a command does not depend on where it is
        # started.
        merged = {"data_dir": (str(file), str(data_dir)), **merged}
    for key, (origin, value) in merged.items():
        section, _, name = key.partition(".")
        if key == "data_dir":
            data_dir = _resolve_path(file, origin, _text(key, origin, value))
        elif section == "spark" and name:
            spark[name] = _spark_text(value)
        elif section in _SECTIONS and name in _field_types(_SECTIONS[section]):
            if key in ("loader.warehouse", "loader.state") and value and "://" not in str(value):
                value = str(_resolve_path(file, origin, _text(key, origin, value)))
            chosen[section][name] = _parse_setting(key, origin, value, _field_types(_SECTIONS[section])[name])
        else:
            near = difflib.get_close_matches(key, known_keys(), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(known_keys())}"
            raise SettingsError(f"unknown setting {key!r} in {origin}; {hint}")
    sections = {name: cls(**chosen[name]) for name, cls in _SECTIONS.items()}
    return Settings(
        data_dir=data_dir,
        spark=types.MappingProxyType(spark),
        keys_from_working_directory=found.from_working_directory,
        **sections,
    )


def _resolve_path(file: Path | None, origin: str, text: str) -> Path:
    """Returns a path that a setting contains. A path from the settings file is relative to the file's directory; other
    paths stay relative to the working directory.

    Args:
        file: the settings file, if there is one.
        origin: the source of the setting, such as the name of the settings file.
        text: the path, which may begin with `~`.
    """
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise SettingsError(
            f"{text!r} in {origin}: ~ cannot be expanded, because the user has no home directory; use an absolute path"
        ) from error
    return path if file is None or origin != str(file) else file.resolve().parent / path


def known_keys() -> Sequence[str]:
    """Returns every key that a file may set; `spark.*` represents Spark's properties."""
    return ["data_dir", *(f"{name}.{key}" for name, cls in _SECTIONS.items() for key in _field_types(cls)), "spark.*"]


def _field_types(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def _spark_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(key: str, origin: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{key} in {origin}: expected text, found {value!r}")
    return value


def _parse_setting(key: str, origin: str, value: Any, expected_type: Any) -> Any:
    if expected_type == tuple[TopicTable, ...]:
        return _topic_tables(key, origin, value)
    try:
        result = _parse_value(value, expected_type)
    except ValueError as error:
        raise SettingsError(f"{key} in {origin}: {error}, found {mask_repr(key, value)}") from error
    if key in CHOICES and str(result) not in CHOICES[key]:
        raise SettingsError(
            f"{key} in {origin}: expected one of {', '.join(CHOICES[key])}, found {mask_repr(key, value)}"
        )
    if key in AT_LEAST and result < AT_LEAST[key]:
        raise SettingsError(f"{key} in {origin}: expected at least {AT_LEAST[key]}, found {mask_repr(key, value)}")
    if key in AT_MOST and result > AT_MOST[key]:
        raise SettingsError(f"{key} in {origin}: expected at most {AT_MOST[key]}, found {mask_repr(key, value)}")
    if key == "loader.quarantine_ratio_max" and not 0.0 <= result <= 1.0:
        raise SettingsError(f"{key} in {origin}: expected a ratio between 0 and 1, found {mask_repr(key, value)}")
    if key == "hive.executor" and not _is_executor(result):
        raise SettingsError(
            f"{key} in {origin}: expected spark, print or hive://host:port, found {mask_repr(key, value)}"
        )
    if key == "loader.subject" and not _is_subject(result):
        raise SettingsError(
            f"{key} in {origin}: expected a subject such as {{topic}}-value, where {{topic}} is the topic's "
            f"name, found {mask_repr(key, value)}"
        )
    for pattern in result if key in PATTERNS else ():
        _check_pattern(key, origin, pattern)
    return result


def _is_executor(text: str) -> bool:
    try:
        return EXECUTORS.fullmatch(text) is not None and urlsplit(text).port != 0
    except ValueError:  # the port is above 65535, or a bracket is no part of an IPv6 address
        return False


def _is_subject(template: str) -> bool:
    rest = template.replace("{topic}", "")
    return bool(template) and rest.isprintable() and not set(rest) & set("{}")


def _check_pattern(key: str, origin: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise SettingsError(f"{key} in {origin}: expected a regular expression, found {pattern!r}: {error}") from error


def _topic_tables(key: str, origin: str, value: Any) -> tuple[TopicTable, ...]:
    """Parses `value`, the array of tables `[[loader.topic]]` of a settings file, each with a pattern and keys of
    `[loader]`.

    Args:
        key: the key of the array, for messages.
        origin: the source of the value, such as the name of the settings file, for messages.
    """
    if not isinstance(value, list) or not all(isinstance(table, Mapping) for table in value):
        raise SettingsError(f"{key} in {origin}: expected TOML tables [[{key}]] in a settings file, found {value!r}")
    types_of_keys = _field_types(LoaderSettings)
    tables = []
    for number, table in enumerate(value, 1):
        table_name = f"[[{key}]] number {number} in {origin}"
        pattern = table.get("pattern")
        if not isinstance(pattern, str) or not pattern:
            raise SettingsError(
                f"pattern of {table_name}: expected a regular expression of topic names, found {pattern!r}"
            )
        _check_pattern("pattern", table_name, pattern)
        unknown = sorted(set(table) - {"pattern", *TOPIC_KEYS})
        if unknown:
            raise SettingsError(
                f"unknown setting {unknown[0]!r} in {table_name}; known: pattern, {', '.join(TOPIC_KEYS)}"
            )
        values = {
            name: _parse_setting(f"loader.{name}", table_name, item, types_of_keys[name])
            for name, item in table.items()
            if name != "pattern"
        }
        tables.append(TopicTable(pattern, types.MappingProxyType(values)))
    return tuple(tables)


def _parse_value(value: Any, expected_type: Any) -> Any:
    if expected_type == Address | None:
        return None if value in ("", "off") else _parse_value(value, Address)
    if expected_type in (Address, Duration):
        if not isinstance(value, str):
            raise ValueError("expected text")
        return expected_type.parse(value)
    if expected_type is int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}", str(value)):
            raise ValueError("expected a whole number")
        return int(value)
    if expected_type is float:
        if isinstance(value, bool):
            raise ValueError("expected a number")
        return float(value)
    if expected_type == tuple[str, ...]:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise ValueError("expected a list of strings")
        return tuple(item.strip() for item in items if item.strip())
    if expected_type is bool:
        if str(value).lower() not in ("true", "false"):
            raise ValueError("expected true or false")
        return str(value).lower() == "true"
    if expected_type == Mapping[str, str]:
        if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
            raise ValueError("expected a TOML table whose values are strings")
        return dict(value)
    if expected_type == tuple[Mapping[str, Any], ...]:
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise ValueError("expected an array of TOML tables")
        return tuple(value)
    if not isinstance(value, str):
        raise ValueError("expected text")
    return value


def trusted_credentials(settings: Settings, keys: Iterable[str]) -> list[str]:
    """Returns the `keys` that are set and trusted. A key is trusted unless its value comes from a `headrace.toml` that
    was found in the working directory. Such a key that ends in `_file` is trusted too if it names a file outside of the
    working directory.

    That settings file may be untrusted: in CI it comes from the pull request. If it names a server, the credentials of
    the job must not be sent there.
    """
    return [key for key in keys if _setting(settings, key) and not _is_from_working_directory(settings, key)]


def _is_from_working_directory(settings: Settings, key: str) -> bool:
    if key not in settings.keys_from_working_directory:
        return False
    if not key.endswith("_file"):
        return True
    return Path(_setting(settings, key)).expanduser().resolve().is_relative_to(Path.cwd())


def _setting(settings: Settings, key: str) -> str:
    section, _, name = key.partition(".")
    value: str = getattr(getattr(settings, section), name)
    return value
