"""Kills, stops and restarts the bundled broker in tests, at the same address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SETTING = "HEADRACE_BROKER_KILLS"


def shutdowns(usually: int) -> list[str]:
    """Returns how a broker is ended in each round of a test: `kill` and `stop` alternately.

    Args:
        usually: number of each of the two; the environment variable `SETTING` overrides it.
    """
    return ["kill", "stop"] * int(os.environ.get(SETTING, usually))


def serve(start_service: Any, data_dir: Path, port: int = 0, **settings: str) -> Any:
    environment = {f"HEADRACE__BROKER__{name.upper()}": value for name, value in settings.items()}
    return start_service(
        "headrace",
        "broker",
        "serve",
        "--data-dir",
        str(data_dir),
        "--broker-listen",
        f"127.0.0.1:{port}",
        environment=environment,
    )


def start_again(service: Any, end: str, start_service: Any, data_dir: Path, port: int, **settings: str) -> Any:
    """Ends a broker, starts it again on the same directory and port, and returns the new process. Fails if one of the
    two logged damage.

    Args:
        end: `kill` or `stop`.
        settings: settings of the new broker.
    """
    if end == "stop":
        assert service.stop() == 0
    else:
        service.kill()
    restarted = serve(start_service, data_dir, port, **settings)
    assert not any("log damaged" in line or "Traceback" in line for line in [*service.errors, *restarted.errors])
    return restarted
