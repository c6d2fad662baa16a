"""Notes about time fields that cannot be used."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from headrace.loader.plan.time_fields import time_field_note
from support.loader.loader_samples import POLICY

DEFAULT = dataclasses.replace(POLICY, time_fields=("header.time", "timestamp"))
SET = dataclasses.replace(POLICY, time_fields=("at", "meta.at"), are_time_fields_set=True)


def text(**fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    )


@pytest.mark.parametrize(
    ("schema", "time_property", "policy"),
    [
        (text(timestamp="long"), "", DEFAULT),
        (text(timestamp="string"), "", DEFAULT),
        (text(n="long"), "", DEFAULT),
        (text(header="double", n="long"), "", DEFAULT),
        (text(timestamp="double", header={"type": "record", "name": "H", "fields": [{"name": "time", "type": "long"}]}),
         "", DEFAULT),
        (text(timestamp="double", at="long"), "at", DEFAULT),
        (text(at="long"), "", SET),
        ("{", "", DEFAULT),
    ],
)  # fmt: skip
def test_usable_or_absent_time_fields_get_no_note(schema: str, time_property: str, policy: Any) -> None:
    assert time_field_note({1: schema}, 1, time_property, policy) == ""


def test_unknown_newest_version_gets_no_note() -> None:
    assert time_field_note({1: text(timestamp="double")}, None, "", DEFAULT) == ""
    assert time_field_note({}, 1, "", DEFAULT) == ""


@pytest.mark.parametrize(
    ("schema", "time_property", "policy", "start"),
    [
        (text(timestamp="double"), "", DEFAULT,
         "the time field timestamp is a double, which states no unit: rows are filed by the time of the record; "),
        (text(created_at="long"), "createdAt", DEFAULT,
         "headrace.time names the field createdAt, which does not exist (the schema has created_at): rows are filed by "
         "the time of the record instead; "),
        (text(at="int", timestamp="long"), "at", DEFAULT,
         "headrace.time names the field at, which is an int, which states no unit: rows are filed by the field "
         "timestamp instead; "),
        (text(n="long"), "", SET,
         "no field of loader.time_fields is in the schema (at does not exist, meta.at does not exist): rows are filed "
         "by the time of the record; "),
        (text(at="boolean"), "", SET, "the time field at is a boolean, which states no point in time: "),
    ],
)  # fmt: skip
def test_unusable_time_field_is_named_with_the_reason(schema: str, time_property: str, policy: Any, start: str) -> None:
    assert time_field_note({1: "{}", 2: schema}, 2, time_property, policy).startswith(start)
