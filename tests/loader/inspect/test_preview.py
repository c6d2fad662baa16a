"""A preview of pending messages agrees with the load that follows, and changes nothing."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from headrace.avro_schema import frame, parse_schema
from headrace.loader.errors import NoSuchTopic
from headrace.loader.inspect.preview import PIECE_OFFSETS, REGISTERED_ELSEWHERE
from headrace.loader.run import run_load
from headrace.registry.errors import CredentialsRefused
from support.loader.backfill_world import WITH_NOTE
from support.loader.loader_fakes import ORDER_V1
from support.loader.projection_oracle import encode
from support.loader.value_world import ValueWorld


@pytest.fixture
def world(tmp_path: Path) -> ValueWorld:
    world = ValueWorld(tmp_path)
    world.registry.register("orders-value", 1, ORDER_V1)
    return world


def order(number: int, schema_id: int = 1) -> bytes:
    return frame(schema_id, encode(parse_schema(ORDER_V1), {"id": number}))


def test_preview_counts_what_the_load_then_quarantines(world: ValueWorld) -> None:
    world.produce(
        "orders",
        [order(1), b'{"id": 1}', None, order(2, 99), order(3)],
        [b"\x00\x00\x00\x00\x01", b'{"id": 2}', order(4)],
    )
    world.ports()
    before = world.files()
    found = world.preview()
    assert world.files() == before, "a preview changes no file"
    assert (found.pending, found.read, found.limit) == (8, 8, "")
    assert (found.loadable, found.quarantined, found.others) == (3, 4, 1)
    assert found.problems == ()
    assert not found.is_held_back
    run_load(world.ports(), world.settings)
    assert Counter({group.code: group.count for group in found.groups}) == world.quarantine_codes()
    (json_group,) = (group for group in found.groups if group.value == b'{"id": 1}')
    assert (json_group.code, json_group.count, json_group.samples) == ("framing", 2, ((0, 1), (1, 1)))
    assert "JSON" in json_group.hint
    assert world.preview().pending == 0


def test_a_held_back_topic_is_previewed_and_then_let_in(world: ValueWorld) -> None:
    world.produce("orders", [b"garbage"] * 500)
    report = run_load(world.ports(), world.settings)
    assert "headrace quarantine preview orders" in report.problems["orders"][0]
    found = world.preview()
    assert (found.pending, found.read, found.quarantined, found.is_held_back) == (500, 500, 500, True)
    world.policy = dataclasses.replace(world.policy, quarantine_ratio_max=1.0)
    run_load(world.ports(), world.settings)
    assert world.quarantine_codes() == Counter(framing=500)


def test_limits_end_the_reading_and_are_stated(world: ValueWorld) -> None:
    world.produce("orders", [order(n) for n in range(3 * PIECE_OFFSETS)], [b"garbage"] * 10)
    found = world.preview(messages_max=100)
    assert (found.pending, found.read, found.limit) == (3 * PIECE_OFFSETS + 10, 100, "messages")
    found = world.preview(bytes_max=1)
    assert (found.read, found.limit) == (PIECE_OFFSETS, "bytes")
    found = world.preview(seconds_max=0.0)
    assert (found.read, found.limit) == (0, "seconds")
    assert world.preview(messages_max=PIECE_OFFSETS + 10).quarantined == 10, "partitions are read in turn"


def test_preview_guesses_the_schema_of_data_without_a_usable_id(world: ValueWorld) -> None:
    world.registry.register("orders-value", 5, WITH_NOTE)
    body = encode(parse_schema(WITH_NOTE), {"id": 7, "timestamp": 8, "note": "a note of some length"})
    world.produce("orders", [body, frame(1, body), frame(5, body)])
    without, wrong = sorted(world.preview().groups, key=lambda group: group.code)
    assert (without.code, wrong.code) == ("framing", "malformed")
    assert "schema 5 without the magic byte" in without.hint
    assert "schema 5 with another schema id" in wrong.hint


def test_preview_of_a_topic_without_a_schema_shows_its_messages(world: ValueWorld) -> None:
    world.produce("clicks", [b'{"a": 1}', order(1), order(2, 77)])
    found = world.preview("clicks")
    assert {group.code: group.count for group in found.groups} == {
        "framing": 1,
        REGISTERED_ELSEWHERE: 1,
        "schema_not_found": 1,
    }
    hints = {group.code: group.hint for group in found.groups}
    assert "another registry" in hints["schema_not_found"]
    assert hints[REGISTERED_ELSEWHERE] == "", "this registry has the schema"
    assert found.is_waiting, "a load puts none of the messages into the quarantine"
    assert any("clicks-value" in problem for problem in found.problems)


def test_preview_states_that_the_registry_could_not_be_used(world: ValueWorld) -> None:
    world.produce("orders", [order(1)])
    run_load(world.ports(), world.settings)
    world.cluster.values["orders"][0] += [order(2), order(3, 99)]
    world.cluster.topics["orders"].logs[0] += [0, 0]
    world.registry.failure = CredentialsRefused("wrong password", status=401)
    found = world.preview()
    assert (found.loadable, found.quarantined) == (1, 1)
    assert "could not be used" in found.groups[0].reason
    assert any("wrong password" in problem for problem in found.problems)


def test_preview_states_lost_messages_and_reads_the_others(world: ValueWorld) -> None:
    world.produce("orders", [order(n) for n in range(5)])
    run_load(world.ports(), world.settings)
    world.cluster.values["orders"] = [[order(1), b"garbage"]]
    topic = world.cluster.topics["orders"]
    topic.logs, topic.first = [[0, 0]], 20
    found = world.preview()
    assert (found.pending, found.loadable, found.quarantined) == (2, 1, 1)
    assert any("removed before they were read" in problem for problem in found.problems)


def test_groups_are_limited(world: ValueWorld) -> None:
    world.produce("orders", [order(1, 100 + n) for n in range(300)])
    found = world.preview()
    assert len(found.groups) == 20
    assert sum(group.count for group in found.groups) == found.quarantined == 300


def test_an_unknown_topic_is_an_error(world: ValueWorld) -> None:
    with pytest.raises(NoSuchTopic):
        world.preview("nothing")
