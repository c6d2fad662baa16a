"""Settings: read at startup and passed down as frozen values.

`sections` defines every setting with its default. `loading` merges defaults, settings file, environment and flags.
`addresses` resolves the addresses of registry, broker and metastore, also from a running `headrace up`.
"""

from headrace.settings.loading import (
    CONFIG_PATH_VARIABLE,
    ENVIRONMENT,
    ENVIRONMENT_PREFIX,
    SettingsError,
    home_directory,
    known_keys,
    load_settings,
    setting_origins,
    user_state_directory,
)
from headrace.settings.sections import (
    CHOICES,
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

__all__ = [
    "CHOICES",
    "CONFIG_PATH_VARIABLE",
    "ENVIRONMENT",
    "ENVIRONMENT_PREFIX",
    "TOPIC_KEYS",
    "Address",
    "AlertsSettings",
    "AuditSettings",
    "BrokerSettings",
    "CompatSettings",
    "ConsoleSettings",
    "Duration",
    "GatewaySettings",
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
    "user_state_directory",
]
