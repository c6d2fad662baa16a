"""`GET /metrics` of the application, with counts of the database's content."""

from __future__ import annotations

from pathlib import Path

from headrace.registry.storage.database import Database, sqlite_url
from support.registry.registry_calls import STRING, registry_in_process


def test_metrics_count_subjects_schemas_and_versions(database_url: str) -> None:
    with registry_in_process(database_url) as registry:
        registry.registered("a", STRING)
        registry.registered("b", STRING)
        registry.registered("b", STRING, metadata={"properties": {"k": "v"}})
        registry.delete("/subjects/a")
        response = registry.get("/metrics", Accept="text/plain")
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    lines = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    names = ("subjects", "schemas", "versions", "deleted_versions", "database_up")
    assert [float(lines[f"headrace_registry_{name}"]) for name in names] == [2, 2, 3, 1, 1]


def test_metrics_without_database_report_it_as_down(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with registry_in_process(sqlite_url(path)) as registry:
        registry.registered("a", STRING)
        Database(sqlite_url(path)).close()
        for file in tmp_path.iterdir():
            file.write_bytes(b"no database" * 1000)
        response = registry.get("/metrics")
        assert registry.get("/readyz").status == 500
    assert response.status == 200
    assert "headrace_registry_database_up 0.0" in response.text
    assert "headrace_registry_subjects" not in response.text


def test_metrics_accept_any_accept_header(tmp_path: Path) -> None:
    with registry_in_process(sqlite_url(tmp_path / "registry.db")) as registry:
        response = registry.get("/metrics", Accept="application/openmetrics-text;version=1.0.0")
        assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert registry.get("/metrics", Accept="image/png").status == 200
