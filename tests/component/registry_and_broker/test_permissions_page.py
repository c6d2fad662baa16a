"""The permissions of docs/permissions.md suffice for each role, and each one is necessary: bundled broker and registry
with users files."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace import Consumer, KafkaSettings, Producer, RegistrySettings, Settings
from headrace.audit.ingest import ingest
from headrace.audit.storage.store import AuditStore
from headrace.broker.access.scram import Verifier
from headrace.broker.access.users import user_line as broker_user_line
from headrace.cli import main
from headrace.clients.errors import ConsumerError, ProducerError, SchemaRefused
from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.from_settings import client_options, kafka_security
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line as registry_user_line
from headrace.registry.client.of_settings import registry_client
from support.checkout import ROOT
from support.pages import page
from support.permission_rows import (
    BROKER,
    COMMIT,
    CONSUMER,
    COUNTS,
    DECODE,
    JOIN,
    LAG,
    LIST_SUBJECTS,
    LIST_TOPICS,
    LOADER,
    LOADER_GROUP,
    OPERATOR,
    POSTGRES_GRANTS,
    PRODUCER,
    PUBLISH,
    READ,
    READERS,
    REGISTER,
    REGISTRY,
    ROLES,
    ROWS,
    SEND,
    SYSTEMS,
    TOPIC,
    PermissionRow,
    file_table,
    page_table,
    rows_of,
)

PASSWORD = "p4ss"
MECHANISM = "SCRAM-SHA-256"
SCHEMA = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
ADMIN = "admin"


@pytest.mark.parametrize("role", ROLES)
def test_page_has_the_permissions_of_each_role(role: str) -> None:
    assert page_table(role) in page("docs/permissions.md"), "paste: PYTHONPATH=tests python -m support.permission_rows"


@pytest.mark.parametrize("system", SYSTEMS)
def test_page_has_the_permissions_on_files_and_in_hive(system: str) -> None:
    assert file_table(system) in page("docs/permissions.md"), (
        "paste: PYTHONPATH=tests python -m support.permission_rows"
    )


def test_page_has_the_privileges_in_postgres() -> None:
    assert "\n".join(POSTGRES_GRANTS) in page("docs/permissions.md")


def user_without(role: str, missing: PermissionRow | None) -> str:
    """The name of the user with the permissions of a role, except one."""
    return f"{role}-{'complete' if missing is None else ROWS.index(missing)}"


def grants(service: str) -> str:
    users = {
        user_without(role, missing): [row for row in rows_of(role) if row is not missing]
        for role in ROLES
        for missing in (None, *rows_of(role))
    }
    lines = [f"grant {ADMIN} admin *"]
    lines += [f"grant {user} {row.grant}" for user, rows in users.items() for row in rows if row.service == service]
    line = _registry_user if service == REGISTRY else _broker_user
    return "\n".join((*map(line, (ADMIN, *users)), *lines)) + "\n"


def _registry_user(name: str) -> str:
    return registry_user_line(name, PasswordHash.of(PASSWORD, b"some salt", Cost(log2_n=4, r=1, p=1)))


def _broker_user(name: str) -> str:
    verifiers = {each: Verifier.derive(each, PASSWORD, b"some salt", 4096) for each in (MECHANISM, "SCRAM-SHA-512")}
    return broker_user_line(name, verifiers)


@dataclass(frozen=True)
class Services:
    directory: Path
    registry_url: str
    broker: str

    def settings(self, user: str) -> Settings:
        return Settings(
            data_dir=self.directory / user,
            registry=RegistrySettings(url=self.registry_url, client_user=user, client_password=PASSWORD),
            kafka=KafkaSettings(
                bootstrap_servers=self.broker,
                security_protocol="SASL_PLAINTEXT",
                sasl_mechanism=MECHANISM,
                user=user,
                password=PASSWORD,
            ),
        )

    def send(self, user: str) -> None:
        with Producer(self.settings(user), app=user) as producer:
            producer.send(TOPIC, {"id": 1}, schema=SCHEMA)

    def published_by(self, user: str) -> bool:
        """Whether the audit topic has counts of the application, which is named like its user."""
        settings = self.settings(ADMIN)
        registry = registry_client(settings)
        settings.data_dir.mkdir(exist_ok=True)
        with AuditStore(settings.data_dir / "audit.db") as store:
            ingest(
                store,
                client_options=client_options(settings),
                topic=settings.audit.topic,
                schema_text=lambda schema_id: registry.schema_by_id(schema_id).text,
            )
            return any(row.application == user for row in store.rows(TOPIC))

    def loaded_offsets(self) -> bool:
        settings = self.settings(ADMIN)
        with KafkaCluster(self.broker, timeout_s=10, security=kafka_security(settings)) as cluster:
            return any(item.topic == TOPIC for item in cluster.group_offsets(LOADER_GROUP))

    def environment(self, user: str) -> dict[str, str]:
        settings = self.settings(user)
        values = {
            "DATA_DIR": str(settings.data_dir),
            "REGISTRY__URL": self.registry_url,
            "REGISTRY__CLIENT_USER": user,
            "REGISTRY__CLIENT_PASSWORD": PASSWORD,
            "KAFKA__BOOTSTRAP_SERVERS": self.broker,
            "KAFKA__SECURITY_PROTOCOL": settings.kafka.security_protocol,
            "KAFKA__SASL_MECHANISM": MECHANISM,
            "KAFKA__USER": user,
            "KAFKA__PASSWORD": PASSWORD,
            "LOADER__TOPICS_INCLUDE": TOPIC,
        }
        return {f"HEADRACE__{key}": value for key, value in values.items()}

    def load(self, user: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", "load", "--master", "local[1]", "--format", "json"],
            env={**os.environ, **self.environment(user)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def output(self, user: str, *words: str) -> str:
        """Runs a command in this process and returns its JSON."""
        out = io.StringIO()
        with mock.patch.dict(os.environ, self.environment(user)), contextlib.redirect_stdout(out):
            main([*words, "--format", "json"])
        return out.getvalue()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, start_module_service: Any) -> Iterator[Services]:
    directory = tmp_path_factory.mktemp("permissions")
    addresses = {}
    for service in (REGISTRY, BROKER):
        (directory / service).mkdir()
        (directory / service / "users").write_text(grants(service), encoding="utf-8")
        serve = ("headrace", service, "serve", "--data-dir", str(directory / service))
        environment = {f"HEADRACE__{service.upper()}__USERS": str(directory / service / "users")}
        started = start_module_service(*serve, f"--{service}-listen", "127.0.0.1:0", environment=environment)
        addresses[service] = started.addresses[service]
    found = Services(directory, addresses[REGISTRY], addresses[BROKER])
    found.send(ADMIN)
    yield found


def failures_of_producer(services: Services, user: str) -> set[str]:
    try:
        services.send(user)
    except SchemaRefused:
        return {REGISTER}
    except ProducerError:
        return {SEND}
    return set() if services.published_by(user) else {PUBLISH}


def failures_of_consumer(services: Services, user: str) -> set[str]:
    services.send(ADMIN)  # the group has read all earlier messages
    try:
        with Consumer(services.settings(user), topics=[TOPIC], group=READERS, idle_timeout_s=10, app=user) as consumer:
            assert next(consumer).value == {"id": 1}
            consumer.commit()
    except ConsumerError as error:
        words = {"GROUP_AUTHORIZATION": JOIN, "TOPIC_AUTHORIZATION": READ, "permission to read a subject": DECODE}
        return {purpose for word, purpose in words.items() if word in str(error)} or {str(error)}
    return set() if services.published_by(user) else {PUBLISH}


def failures_of_loader(services: Services, user: str) -> set[str]:
    done = services.load(user)
    if "GROUP_AUTHORIZATION_FAILED" in done.stderr:
        return {COMMIT}
    report = json.loads(done.stdout)
    if not sum(one["rows"] for one in report["loaded"]):
        if f"{TOPIC}-value" in done.stdout + done.stderr:
            return {DECODE}
        assert "TOPIC_AUTHORIZATION_FAILED" in str(report["problems"][TOPIC]), "its name is in loader.topics_include"
        return {READ}
    if not services.loaded_offsets():  # a busy broker may delay them, and the next load commits them
        services.load(user)
    assert services.loaded_offsets(), done.stdout + done.stderr
    return set()


def failures_of_operator(services: Services, user: str) -> set[str]:
    failed = set()
    for purpose, words, expected in (
        (LIST_TOPICS, ("broker", "topics"), f'"{TOPIC}"'),
        (LAG, ("broker", "groups"), f'"{LOADER_GROUP}"'),
        (LIST_SUBJECTS, ("registry", "subjects"), f'"{TOPIC}-value"'),
        (COUNTS, ("audit", "report"), '"acknowledged": '),
    ):
        if expected not in services.output(user, *words):
            failed.add(purpose)
    if not failed:
        status = services.output(user, "status")
        assert "AUTHORIZATION" not in status, status
        assert "denied" not in status, status
    return failed


ROLE_FAILURES: dict[str, Callable[[Services, str], set[str]]] = {
    PRODUCER: failures_of_producer,
    CONSUMER: failures_of_consumer,
    LOADER: failures_of_loader,
    OPERATOR: failures_of_operator,
}


@pytest.mark.servers
@pytest.mark.parametrize("role", [PRODUCER, CONSUMER, pytest.param(LOADER, marks=pytest.mark.spark), OPERATOR])
def test_role_needs_each_of_its_permissions_and_no_others(services: Services, role: str) -> None:
    if role == OPERATOR:
        commit_as_loader(services)
    failures = ROLE_FAILURES[role]
    for row in rows_of(role):
        assert failures(services, user_without(role, row)) == {row.purpose}, row
    assert failures(services, user_without(role, None)) == set()


def commit_as_loader(services: Services) -> None:
    from headrace.kafka_wire.topic_partition import TopicPartition

    security = kafka_security(services.settings(ADMIN))
    with KafkaCluster(services.broker, timeout_s=10, security=security) as cluster:
        cluster.metadata()
        cluster.commit_group_offsets(LOADER_GROUP, {TopicPartition(TOPIC, 0): 0})
