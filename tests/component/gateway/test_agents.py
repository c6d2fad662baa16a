"""The requests that the configurations in examples/agents describe, by the documentation of the agents."""

from __future__ import annotations

import gzip
import json
import re
import tomllib
from urllib.parse import urlsplit

import pytest

from headrace.registry.client import RegistryClient
from support.checkout import ROOT
from support.gateway import GatewayClient

pytestmark = pytest.mark.servers

AGENTS = ROOT / "examples" / "agents"
TOPIC = "agent-lines"
LINES = [{"value": {"data": {"file": "/var/log/app/a.log", "log": f"line {number}"}}} for number in range(3)]


@pytest.mark.parametrize("separator", ["", "\n"], ids=["fluent-bit", "vector"])
def test_requests_of_agents_are_stored_as_avro(gateway: GatewayClient, registry_url: str, separator: str) -> None:
    fluent_bit = re.search(r"uri: (\S+)", (AGENTS / "fluent-bit.yaml").read_text(encoding="utf-8"))
    vector = tomllib.loads((AGENTS / "vector.toml").read_text(encoding="utf-8"))["sinks"]["gateway"]
    assert fluent_bit is not None and fluent_bit[1] == urlsplit(vector["uri"]).path
    schema = (AGENTS / "agent-line.avsc").read_text(encoding="utf-8")
    with RegistryClient(registry_url) as registry:
        registered = registry.register(f"{TOPIC}-value", schema)
    body = gzip.compress(separator.join(map(json.dumps, LINES)).encode())
    content_type = vector["request"]["headers"]["Content-Type"]
    response = gateway.post(fluent_bit[1], body, content_type, content_encoding="gzip")
    assert [(item["error_code"], item["value"]["schema_id"]) for item in response.items] == [
        (200, registered.schema_id)
    ] * len(LINES)
