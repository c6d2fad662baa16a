"""What is configured, and where the running parts are: read once at the front door, passed down as values.

`sections` has every setting with its default, and `load_settings`, which reads file, environment and flags;
`addresses` finds registry, broker and metastore, also those of a running `headrace up`. Stands below every room that
reads settings, so it imports none.
"""

from headrace.settings.sections import (
    CHOICES,
    CONFIG_PATH_VARIABLE,
    ENVIRONMENT_PREFIX,
    Address,
    AuditSettings,
    BrokerSettings,
    CompatSettings,
    Duration,
    HiveSettings,
    KafkaSettings,
    LoaderSettings,
    RegistrySettings,
    Settings,
    SettingsError,
    SqlSettings,
    known_keys,
    load_settings,
)

__all__ = [
    "CHOICES",
    "CONFIG_PATH_VARIABLE",
    "ENVIRONMENT_PREFIX",
    "Address",
    "AuditSettings",
    "BrokerSettings",
    "CompatSettings",
    "Duration",
    "HiveSettings",
    "KafkaSettings",
    "LoaderSettings",
    "RegistrySettings",
    "Settings",
    "SettingsError",
    "SqlSettings",
    "known_keys",
    "load_settings",
]
