"""Requirements in the metadata of an installation, compared with the library `packaging`."""

from __future__ import annotations

import importlib.metadata

import pytest
from packaging.requirements import Requirement as Packaging

from headrace.cli.requirements import Requirement, missing_by_extra, satisfies

VERSIONS = ("0.7", "2.9.9", "3", "3.0.0", "3.0.12", "3.1", "3.9.1", "4.0", "4.3.0", "43.0.1", "2024.1")


def test_requirements_are_parsed_as_by_packaging() -> None:
    lines = importlib.metadata.requires("headrace") or []
    assert lines
    assert [line for line in lines if not is_parsed_alike(line)] == []


def is_parsed_alike(line: str) -> bool:
    read, known = Requirement.parse(line), Packaging(line)
    return (
        read.name == known.name
        and known.marker is not None
        and known.marker.evaluate({"extra": read.extra})
        and all(satisfies(version, read.bounds) == known.specifier.contains(version) for version in VERSIONS)
    )


def test_satisfies_compares_releases() -> None:
    assert satisfies("3.14", "")
    assert satisfies("4.0.0rc1", ">=4"), "users test pre-releases"
    with pytest.raises(ValueError, match="'~=3'"):
        satisfies("3.1", "~=3")
    with pytest.raises(ValueError, match="python_version"):
        Requirement.parse("a>=1; python_version < '3.12'")


def test_missing_by_extra_lists_missing_libraries() -> None:
    required = [
        Requirement("a", "", "x"),
        Requirement("b", "", "x"),
        Requirement("a", "", "y"),
        Requirement("b", "", "x"),
    ]
    assert missing_by_extra(required, {"a": "1"}) == {"x": ["b"], "y": []}
