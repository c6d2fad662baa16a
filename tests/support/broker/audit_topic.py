"""Reads the message counts of the audit topic in tests."""

from __future__ import annotations

from headrace import RegistryClient
from headrace.audit.ingest import ingest
from headrace.audit.row import AuditRow
from headrace.audit.storage.store import AuditStore
from headrace.settings import Settings


def audit_rows(settings: Settings, topic: str) -> list[AuditRow]:
    """Returns the rows of message counts of a topic that producers, consumers and loaders have published to the audit
    topic so far."""
    registry = RegistryClient(settings.registry.url)
    with AuditStore(settings.data_dir / "audit.db") as store:
        ingest(
            store,
            client_options={"bootstrap_servers": settings.kafka.bootstrap_servers},
            topic=settings.audit.topic,
            schema_text=lambda schema_id: registry.schema_by_id(schema_id).text,
        )
        return store.rows(topic)
