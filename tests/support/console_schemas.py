"""Schemas of a registry whose pages a console shows."""

from __future__ import annotations

import json
from typing import Any

from support.registry.served_registry import ServedRegistry

EVIL = "<script>alert(1)</script>\u202e"


def record(name: str, *fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **more})


def field(name: str, of: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": of, **more}


AMOUNT = {"type": "record", "name": "Amount", "fields": [field("cents", "int"), field("currency")]}
AMOUNT_2 = {"type": "record", "name": "Amount", "fields": [field("cents", "long"), field("currency")]}
ORDER_1 = record("Order", field("id", "int"), field("buyer"), field("total", AMOUNT))
ORDER_2 = record("Order", field("id", "long"), field("customer", aliases=["buyer"]), field("total", AMOUNT_2))
ORDER_3 = record(
    "Order",
    field("id", "long"),
    field("customer", aliases=["buyer"], doc="who pays"),
    field("total", AMOUNT_2),
    field("note", ["null", "string"], default=None, doc=EVIL),
)


def register_samples(registry: ServedRegistry) -> None:
    """Registers subjects with several versions, references and scripts in their texts."""
    with registry.client as client:
        for text in (ORDER_1, ORDER_2, ORDER_3):
            client.register("orders-value", text)
        client.register("orders-value-2", record("Other", field("x")))
        client.register("secret-value", record("Secret", field("hidden_salary")))
        client.register(f"a/b {EVIL}", record("Odd", field("x")))
        client.register(":.eu:orders-value", record("Order", field("eu_only")))
        refers = record("Refers", field("held", "Secret"))
        client.call(
            "POST",
            "/subjects/orders-refers/versions",
            body={"schema": refers, "references": [{"name": "Secret", "subject": "secret-value", "version": 1}]},
        )
