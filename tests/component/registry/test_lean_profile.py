"""Clients against a registry with the profile of releases before 8: lean bodies, and error code 409."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.registry import errors
from headrace.registry.client import RegistryClient
from support.registry.registry_calls import USER_1, USER_INCOMPATIBLE

confluent = pytest.importorskip("confluent_kafka.schema_registry")
schema_registry = pytest.importorskip("schema_registry.client")
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer  # noqa: E402
from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: E402
from schema_registry.client.errors import ClientError  # noqa: E402


@pytest.fixture(scope="module")
def url(start_module_service: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    data_dir = str(tmp_path_factory.mktemp("registry"))
    command = ["headrace", "registry", "serve", "--data-dir", data_dir, "--registry-listen", "127.0.0.1:0"]
    service = start_module_service(*command, environment={"HEADRACE__REGISTRY__API_PROFILE": "7"})
    return str(service.addresses["registry"])


def test_clients_that_accept_unknown_keys_get_all_keys(url: str) -> None:
    with RegistryClient(url) as client:
        first = client.register("own", USER_1, metadata={"owner": "shop"})
        assert (first.version, first.text, dict(first.metadata)) == (1, USER_1, {"owner": "shop"})
        assert client.version("own", 1) == client.lookup("own", USER_1) == first
        assert client.schema_by_guid(first.guid).schema_id == first.schema_id
        with pytest.raises(errors.IncompatibleSchema):
            client.register("own", USER_INCOMPATIBLE)
        assert client.delete_subject("own") == [1]


def test_confluent_client_works_with_lean_bodies(url: str) -> None:
    client: Any = confluent.SchemaRegistryClient({"url": url, "max.retries": 0})
    registered = client.register_schema_full_response("theirs-value", confluent.Schema(USER_1, "AVRO"))
    assert registered.schema_id == client.get_latest_version("theirs-value").schema_id
    assert client.lookup_schema("theirs-value", confluent.Schema(USER_1, "AVRO")).version == 1
    context = SerializationContext("theirs", MessageField.VALUE)
    message = AvroSerializer(client, USER_1)({"id": 1}, context)
    assert AvroDeserializer(confluent.SchemaRegistryClient({"url": url}))(message, context) == {"id": 1}


def test_other_clients_get_lean_bodies(url: str) -> None:
    client = schema_registry.SchemaRegistryClient(url=url)
    schema_id = client.register("lean", USER_1)
    assert client.request(f"{url}/schemas/ids/{schema_id}").json() == {"schema": USER_1}
    found = client.get_schema("lean")
    assert (found.schema_id, found.version) == (schema_id, 1)
    with pytest.raises(ClientError) as refused:
        client.register("lean", USER_INCOMPATIBLE)
    assert refused.value.server_traceback["error_code"] == 409
    assert client.check_version("lean", USER_1).version == 1
    assert client.delete_subject("lean") == [1]
