"""What is read of an installation's metadata, held against the library that knows all of it."""

from __future__ import annotations

import importlib.metadata

import pytest
from packaging.requirements import Requirement as Packaging

from headrace.cli.requirements import Requirement, admits, lacking_by_extra

VERSIONS = ("0.7", "2.9.9", "3", "3.0.0", "3.0.12", "3.1", "3.9.1", "4.0", "4.3.0", "43.0.1", "2024.1")


@pytest.mark.parametrize("line", importlib.metadata.requires("headrace") or ())
def test_every_requirement_is_understood(line: str) -> None:
    read, known = Requirement.parse(line), Packaging(line)
    assert read.name == known.name
    assert known.marker is not None
    assert known.marker.evaluate({"extra": read.extra})
    for version in VERSIONS:
        assert admits(version, read.bounds) == known.specifier.contains(version), version


def test_bounds() -> None:
    assert admits("3.14", "")
    assert admits("4.0.0rc1", ">=4"), "which people try before it is out"
    with pytest.raises(ValueError, match="'~=3' is no bound"):
        admits("3.1", "~=3")
    with pytest.raises(ValueError, match="is not of the form"):
        Requirement.parse("a>=1; python_version < '3.12'")


def test_what_extras_lack() -> None:
    required = [
        Requirement("a", "", "x"),
        Requirement("b", "", "x"),
        Requirement("a", "", "y"),
        Requirement("b", "", "x"),
    ]
    assert lacking_by_extra(required, {"a": "1"}) == {"x": ["b"], "y": []}
