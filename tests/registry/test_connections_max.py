from __future__ import annotations

import resource

import pytest

from headrace.registry.api.server import CONNECTIONS_MAX, OTHER_FILES, connections_max

REQUIRED = CONNECTIONS_MAX + OTHER_FILES
UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "connections", "raised_to"),
    [
        ((UNLIMITED, UNLIMITED), CONNECTIONS_MAX, None),
        ((REQUIRED, REQUIRED), CONNECTIONS_MAX, None),
        ((1024, UNLIMITED), CONNECTIONS_MAX, (REQUIRED, UNLIMITED)),
        ((1024, 20_000), CONNECTIONS_MAX, (REQUIRED, 20_000)),
        ((1024, 2048), 2048 - OTHER_FILES, (2048, 2048)),
        ((1024, 1024), 1024 - OTHER_FILES, None),
        ((64, 64), 1, None),
    ],
)
def test_connections_max_respects_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    connections: int,
    raised_to: tuple[int, int] | None,
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, to: raised.append(to))
    assert connections_max() == connections
    assert raised == ([] if raised_to is None else [raised_to])


def test_connections_max_uses_the_current_limit_if_it_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, UNLIMITED))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connections_max() == 1024 - OTHER_FILES
