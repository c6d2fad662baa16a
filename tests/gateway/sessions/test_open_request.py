"""The topic of a session."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from headrace.gateway.errors import GatewayError
from headrace.gateway.sessions.routes import OpenRequest, topic_of
from headrace.settings.loading import load_settings


@pytest.mark.parametrize(
    ("log_type", "topic"),
    [("nginx-error", "errors"), ("nginx-access", "web"), ("NGINX-a", "NGINX-a"), ("x", "x")],
)
def test_first_pattern_of_the_settings_decides(log_type: str, topic: str, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[gateway.log_types]\n"nginx-error" = "errors"\n"nginx-*" = "web"\n', encoding="utf-8")
    rules = load_settings(config=config).gateway.log_types
    assert OpenRequest.parse({"source_id": "s", "log_type": log_type}, partial(topic_of, rules)).topic == topic


def test_topic_of_the_client_takes_precedence() -> None:
    rules = {"*": "web"}
    assert OpenRequest.parse({"source_id": "s", "topic": "t", "log_type": "x"}, partial(topic_of, rules)).topic == "t"


def test_topic_or_log_type_is_required() -> None:
    with pytest.raises(GatewayError, match="topic or log_type is required"):
        OpenRequest.parse({"source_id": "s"}, partial(topic_of, {"*": "web"}))
