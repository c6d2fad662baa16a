"""Headrace: an Avro schema registry with an automatic Hadoop/Hive loader.

    from headrace import Consumer, Producer, RegistryClient

`__all__` is the public API; docs/clients.md and docs/registry-clients.md describe it. All other modules may change in
any release. A name is imported on first use, so that `import headrace` works without the libraries of the extras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.audit.producer_counter import ProducerCounter, RowSelection
    from headrace.clients.aio import AsyncConsumer, AsyncProducer
    from headrace.clients.consumer import Consumer
    from headrace.clients.errors import (
        BrokerUnavailable,
        ConsumerClosed,
        ConsumerError,
        DamagedBatch,
        DeliveryFailed,
        FlushFailed,
        KeyRefused,
        ProducerClosed,
        ProducerError,
        SchemaRefused,
        SchemaUnavailable,
        SourceUnavailable,
        TopicRefused,
        UndecodableMessage,
        ValueRefused,
    )
    from headrace.clients.producer import Producer
    from headrace.registry.client import BasicAuth, BearerAuth, RegistryClient, Tls
    from headrace.registry.errors import (
        AccessDenied,
        CredentialsRefused,
        IncompatibleSchema,
        InvalidSchema,
        RegistryError,
        RegistryUnavailable,
        SchemaNotFound,
        ServiceError,
        StoreError,
        SubjectNotFound,
        VersionNotFound,
    )
    from headrace.settings import KafkaSettings, RegistrySettings, Settings, SettingsError, load_settings

__all__ = [
    "AccessDenied",
    "AsyncConsumer",
    "AsyncProducer",
    "BasicAuth",
    "BearerAuth",
    "BrokerUnavailable",
    "Consumer",
    "ConsumerClosed",
    "ConsumerError",
    "CredentialsRefused",
    "DamagedBatch",
    "DeliveryFailed",
    "FlushFailed",
    "IncompatibleSchema",
    "InvalidSchema",
    "KafkaSettings",
    "KeyRefused",
    "Producer",
    "ProducerClosed",
    "ProducerCounter",
    "ProducerError",
    "RegistryClient",
    "RegistryError",
    "RegistrySettings",
    "RegistryUnavailable",
    "RowSelection",
    "SchemaNotFound",
    "SchemaRefused",
    "SchemaUnavailable",
    "ServiceError",
    "Settings",
    "SettingsError",
    "SourceUnavailable",
    "StoreError",
    "SubjectNotFound",
    "Tls",
    "TopicRefused",
    "UndecodableMessage",
    "ValueRefused",
    "VersionNotFound",
    "load_settings",
]

_NAMES_BY_MODULE = {
    "headrace.audit.producer_counter": ("ProducerCounter", "RowSelection"),
    "headrace.clients.aio": ("AsyncConsumer", "AsyncProducer"),
    "headrace.clients.consumer": ("Consumer",),
    "headrace.clients.errors": (
        "BrokerUnavailable",
        "ConsumerClosed",
        "ConsumerError",
        "DamagedBatch",
        "DeliveryFailed",
        "FlushFailed",
        "KeyRefused",
        "ProducerClosed",
        "ProducerError",
        "SchemaRefused",
        "SchemaUnavailable",
        "SourceUnavailable",
        "TopicRefused",
        "UndecodableMessage",
        "ValueRefused",
    ),
    "headrace.clients.producer": ("Producer",),
    "headrace.registry.client": ("BasicAuth", "BearerAuth", "RegistryClient", "Tls"),
    "headrace.registry.errors": (
        "AccessDenied",
        "CredentialsRefused",
        "IncompatibleSchema",
        "InvalidSchema",
        "RegistryError",
        "RegistryUnavailable",
        "SchemaNotFound",
        "ServiceError",
        "StoreError",
        "SubjectNotFound",
        "VersionNotFound",
    ),
    "headrace.settings": ("KafkaSettings", "RegistrySettings", "Settings", "SettingsError", "load_settings"),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
