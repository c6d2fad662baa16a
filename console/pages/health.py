"""Whether the console serves, for probes. The response depends on no other part."""

from __future__ import annotations

from flask import Blueprint

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
def healthz() -> dict[str, str]:
    return {"status": "ok"}
