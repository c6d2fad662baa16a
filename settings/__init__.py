"""What is configured, and where the running parts are: read once at the front door, passed down as values.

`sections` has every setting with its default, `loading` reads file, environment and flags into them, and `addresses`
finds registry, broker and metastore, also those of a running `headrace up`.
"""

from headrace.settings.home import home_directory, state_directory
from headrace.settings.loading import (
    CONFIG_PATH_VARIABLE,
    ENVIRONMENT,
    ENVIRONMENT_PREFIX,
    SettingsError,
    known_keys,
    load_settings,
    setting_origins,
)
from headrace.settings.sections import (
    CHOICES,
    TOPIC_KEYS,
    AuditSettings,
    BrokerSettings,
    CompatSettings,
    HiveSettings,
    KafkaSettings,
    LoaderSettings,
    RegistrySettings,
    Settings,
    SqlSettings,
    TopicTable,
)
from headrace.settings.values import Address, Duration

__all__ = [
    "CHOICES",
    "CONFIG_PATH_VARIABLE",
    "ENVIRONMENT",
    "ENVIRONMENT_PREFIX",
    "TOPIC_KEYS",
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
    "TopicTable",
    "home_directory",
    "known_keys",
    "load_settings",
    "setting_origins",
    "state_directory",
]
