"""Sample state of a topic, for tests of the view `<table>_latest`."""

from __future__ import annotations

import dataclasses
import json

from headrace.avro_schema import parse_schema
from headrace.hive_ddl.ops import ReplaceView
from headrace.loader.commit.state import FileTotals, TopicState
from headrace.loader.inspect.latest_view import latest_view, newest_id
from headrace.loader.load_schema import EMPTY, LoadState, fold
from support.loader.loader_samples import load_schema


def folded_topic(*versions: str) -> TopicState:
    """Returns the loader's state of the topic `orders` after these versions of its schema were loaded, with the schema
    ids 1, 2 …"""
    state = EMPTY
    for number, text in enumerate(versions, 1):
        state = fold(state, number, parse_schema(text, strict=False), number)
    return topic_state(state, "orders")


def topic_state(state: LoadState, table: str) -> TopicState:
    loaded = dataclasses.replace(load_schema(), text=state.text, fold=json.dumps(state.to_json()))
    totals = FileTotals()
    return TopicState("id-1", table, table, "hour", loaded, {}, frozenset(), totals, totals, 1)


def view_of(*versions: str, kafka_column: str = "position") -> ReplaceView:
    topic = folded_topic(*versions)
    assert newest_id(topic) == len(versions)
    view = latest_view("orders", topic, kafka_column, "shop", len(versions), versions[-1])
    assert view is not None
    return view
