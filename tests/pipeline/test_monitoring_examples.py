"""The rules and the dashboard of examples/monitoring name metrics that the services expose. The programs of Prometheus
check their syntax in tests/component/monitoring."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.broker.config import BrokerConfig
from headrace.broker.server import BrokerServer
from headrace.cli import command_parser
from headrace.pipeline.status.metric import METRICS
from headrace.registry.operation.metrics import RegistryMetricsPage, new_counts
from support.checkout import ROOT
from support.monitoring import dashboard_expressions

EXAMPLES = ROOT / "examples" / "monitoring"
SCHEMA_VERSION_MAX = 42
"""Of the dashboard; newer versions of its format are unknown to Grafana 13."""
COLUMNS = 24


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((EXAMPLES / "headrace.rules.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """The names of all samples of the platform, a registry and a broker."""
    stored = dict.fromkeys(("subjects", "schemas", "versions", "deleted_versions"), 1)
    registry = RegistryMetricsPage(new_counts(1), "1", lambda: 0).render("", stored, 1.0)[0].decode()
    found = {*sample_names(registry), *sample_names(broker_page(tmp_path_factory.mktemp("broker")))}
    for family in METRICS.values():
        found |= names_of(family.name, str(family.kind))
    return frozenset(found)


def sample_names(page: str) -> Iterator[str]:
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
        yield from names_of(name, kind)


def names_of(name: str, kind: str) -> set[str]:
    return {f"{name}{suffix}" for suffix in ("_bucket", "_count", "_sum")} if kind == "histogram" else {name}


def broker_page(directory: Path) -> str:
    async def run() -> str:
        server = BrokerServer(BrokerConfig(directory, port=0, metrics_host="127.0.0.1"))
        await server.start()
        try:
            assert server.metrics_address is not None
            reader, writer = await asyncio.open_connection(*server.metrics_address)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            return (await reader.read()).decode()
        finally:
            server.stop()
            await server.wait()

    return asyncio.run(run())


def used(expression: str) -> set[str]:
    return set(re.findall(r"\bheadrace_\w+", expression))


def test_rules_use_exposed_metrics(exposed: frozenset[str]) -> None:
    assert {name for rule in rules() for name in used(rule["expr"])} - exposed == set()


def test_dashboard_uses_exposed_metrics(dashboard: dict[str, Any], exposed: frozenset[str]) -> None:
    expressions = dashboard_expressions(dashboard)
    queries = [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    names = {name for text in (*expressions, *queries) for name in used(text)}
    assert len(expressions) > 20 and names - exposed == set()


def test_each_alert_has_a_severity_a_command_and_a_unit_test_in_which_it_fires() -> None:
    document = yaml.safe_load((EXAMPLES / "headrace.rules.test.yml").read_text(encoding="utf-8"))
    cases = [case for test in document["tests"] for case in test["alert_rule_test"]]
    firing = {case["alertname"] for case in cases if case.get("exp_alerts")}
    assert [rule["alert"] for rule in rules() if rule["alert"] not in firing] == []
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        assert rule["annotations"].keys() == {"summary", "action"}, rule
        words = shlex.split(re.sub(r"\{\{.*?\}\}", "orders", rule["annotations"]["action"]))
        if words[0] == "headrace":
            command_parser(words[1]).parse_args(words[2:])


def test_panels_have_ids_places_and_a_chosen_data_source(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert dashboard["uid"] and dashboard["schemaVersion"] <= SCHEMA_VERSION_MAX
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["w"] > 0 and place["x"] + place["w"] <= COLUMNS, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} is over another panel"
        taken |= cells
    sources = {
        json.dumps(one["datasource"])
        for panel in panels
        if panel["type"] != "row"
        for one in (panel, *panel["targets"])
    }
    assert sources == {json.dumps({"type": "prometheus", "uid": "${datasource}"})}


def test_variables_of_the_dashboard_are_defined(dashboard: dict[str, Any]) -> None:
    defined = {one["name"] for one in dashboard["templating"]["list"]} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard))) - defined == set()


def test_page_describes_all_alerts_and_metrics() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(Headrace\w+)`", page)) == {rule["alert"] for rule in rules()}
    assert set(re.findall(r"`(headrace_[a-z_]+)`", page)) == METRICS.keys()
