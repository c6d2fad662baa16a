"""A warehouse with a loaded topic, for the pages of tables of a console."""

from __future__ import annotations

import json
from pathlib import Path

from headrace.loader.run import run_load
from support.loader.loader_fakes import World

HOSTILE = "<script>alert(1)</script>\u202e"
VERSIONS = (
    {"doc": HOSTILE, "owner": "team <b>", "fields": [{"name": "orderId", "type": "int", "doc": HOSTILE}]},
    {
        "doc": HOSTILE,
        "owner": "team <b>",
        "fields": [
            {"name": "orderId", "type": "long", "doc": HOSTILE},
            {"name": "userName", "type": "string", "default": "", "doc": "name of the buyer"},
        ],
    },
)


def loaded_world(directory: Path) -> World:
    """Loads the topic `orders` twice: the second load brings version 2 of its subject, and messages without changes
    follow it in a third."""
    world = World(directory / "loads")
    topic = world.topic("orders", [1] * 10, [1] * 5)
    for number, record in enumerate(VERSIONS, 1):
        text = json.dumps({"type": "record", "name": "Order", **record})
        world.registry.register("orders-value", number, text)
        topic.logs[0].append(number)
        run_load(world.ports(), world.settings)
        world.clock_ms += 600_000
    topic.logs[0].append(2)
    run_load(world.ports(), world.settings)
    return world
