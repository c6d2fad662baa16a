"""Writes docs/settings.md from settings/sections.py: `python tools/settings_page.py`. A test keeps the page current."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from headrace.cli.command import FLAGS
from headrace.settings import CHOICES, ENVIRONMENT_PREFIX, Settings

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
INTRODUCTION = f"""# Settings

Defaults are overridden by `headrace.toml`, that by the environment, and that by flags. The file is the one named by
`--config` or `HEADRACE_CONFIG`, else `headrace.toml` in the working folder, else `~/.config/headrace/headrace.toml`.
In the environment a key is written `{ENVIRONMENT_PREFIX}<SECTION>__<KEY>`, for example
`{ENVIRONMENT_PREFIX}LOADER__PARTITION_BY=day`. Durations are written `500ms`, `90s`, `10m`, `2h` or `7d`. Unknown keys
are errors.

| key | flag | default | meaning |
|---|---|---|---|
"""
SPARK_ROW = (
    "| `spark.*` | `--master` for `spark.master` | `master = local[*]` | passed through to Spark: `master`, and any "
    "`spark.` property without its prefix |\n"
)


def page() -> str:
    rows = [row("data_dir", "./headrace-data", "folder of everything this installation keeps")]
    source = (ROOT / "settings" / "sections.py").read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    lines = source.splitlines()
    settings = Settings().masked()
    for section, values in settings.items():
        if section == "spark" or not isinstance(values, dict):
            continue
        for node in classes[f"{section.capitalize()}Settings"].body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                key = f"{section}.{node.target.id}"
                rows.append(row(key, values[node.target.id], meaning(key, lines, node)))
    return INTRODUCTION + "".join(rows) + SPARK_ROW


def row(key: str, default: str, text: str) -> str:
    flag = f"`{FLAGS[key].name}`" if key in FLAGS else ""
    shown = "off" if default == "None" else f"`{default}`" if default else ""
    escaped = text.replace("|", "\\|")
    return f"| `{key}` | {flag} | {shown} | {escaped} |\n"


def meaning(key: str, lines: list[str], node: ast.AnnAssign) -> str:
    """The comment beside the field, else the one above it, else the help of its flag."""
    beside = re.search(r"  # (.*)$", lines[(node.end_lineno or node.lineno) - 1])
    above = re.match(r"\s*# (.*)$", lines[node.lineno - 2])
    text = beside[1] if beside else above[1] if above else FLAGS[key].help if key in FLAGS else ""
    if key in CHOICES and not all(choice in text for choice in CHOICES[key]):
        text = f"{text}; one of {', '.join(CHOICES[key])}" if text else f"one of {', '.join(CHOICES[key])}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
