"""The examples for Prometheus and Grafana, and the programs that check them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from support.checkout import ROOT

UNPACKED = ROOT / ".make" / "prometheus" / "usr" / "bin"
"""The programs of Debian's packages prometheus and prometheus-alertmanager, as `make test-prometheus` unpacks them."""


def program(name: str) -> str | None:
    """Returns the path of `promtool`, `amtool` or `prometheus`; None if it is not installed."""
    return shutil.which(name, path=str(UNPACKED)) or shutil.which(name)


def dashboard_expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def with_values(expression: str) -> str:
    """Returns an expression of the dashboard with values in place of Grafana's variables."""
    return expression.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$topic", ".*")


def scrape_config(targets: dict[str, str], directory: Path, rules: Path) -> Path:
    """Writes the configuration of a Prometheus that scrapes targets each second, and returns its path.

    Args:
        targets: the addresses by job.
    """
    jobs = "".join(
        f"  - job_name: {job}\n    static_configs: [{{targets: ['{address}']}}]\n" for job, address in targets.items()
    )
    path = directory / "prometheus.yml"
    path.write_text(
        f"global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\nrule_files: ['{rules}']\n"
        f"scrape_configs:\n{jobs}"
    )
    return path
