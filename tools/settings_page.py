"""Writes docs/settings.md from settings/sections.py: `python tools/settings_page.py`. A test keeps the page current."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from headrace.cli.command import FLAGS
from headrace.settings import CHOICES, ENVIRONMENT_PREFIX, TOPIC_KEYS, Settings
from headrace.settings.log_lines import FORMAT_VARIABLE, FORMATS, LEVEL_VARIABLE, LOG_DEFAULTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
INTRODUCTION = f"""# Settings

Defaults are overridden by `headrace.toml`, that by the environment, and that by flags. The file is the one named by
`--config` or `HEADRACE_CONFIG`, else `headrace.toml` in the working directory, else `~/.config/headrace/headrace.toml`.
In the environment a key is written `{ENVIRONMENT_PREFIX}<SECTION>__<KEY>`, for example
`{ENVIRONMENT_PREFIX}LOADER__PARTITION_BY=day`. Durations are written `500ms`, `90s`, `10m`, `2h` or `7d`. Unknown keys
are errors. A relative `data_dir`, `loader.warehouse` or `loader.state` of a file is taken from that file's directory,
and so is the default of `data_dir` where there is a file; anything else from the directory where the command is started.

| key | flag | default | meaning |
|---|---|---|---|
"""
SPARK_ROW = (
    "| `spark.*` | `--master` for `spark.master` | `master = local[*]` | passed through to Spark: `master`, and any "
    "`spark.` property without its prefix |\n"
)

LOG = f"""
## The log

There is a log before settings are read, so two variables of the environment say how its lines look; nothing else does.

| variable | default | meaning |
|---|---|---|
| `{LEVEL_VARIABLE}` | `{LOG_DEFAULTS[LEVEL_VARIABLE]}` | `DEBUG`, `INFO`, `WARNING` or `ERROR`: what is below stays out; on a terminal any of them asks for lines of the log too |
| `{FORMAT_VARIABLE}` | `{LOG_DEFAULTS[FORMAT_VARIABLE]}` | one of {", ".join(FORMATS)}: `json` makes each line an object |

Another value is as none. A name that is nearly one of these, or a setting's with too few underscores, is an error.
"""  # noqa: E501  (lines of a table)

TOPICS = f"""
## Some topics otherwise than the others

A settings file may have any number of tables `[[loader.topic]]`:

```toml
[[loader.topic]]
pattern = "clicks|page\\\\..*"          # a regular expression that a topic's whole name must match
partition_by = "day"
quarantine_ratio_max = 0.01

[[loader.topic]]
pattern = ".*"
future_records = "clamp"
```

Each gives some of these keys, which mean what the key of `[loader]` of that name means:
{", ".join(f"`{key}`" for key in TOPIC_KEYS)}.
For each key the first table in the file counts that matches the topic and has that key; a key that none of them has is
the one of `[loader]`, wherever that was set. Tables are neither in the environment nor on the command line.

`partition_by` is chosen when a topic's table is made; a table that is there keeps its own, and the load says so.
`kafka_column` may be widened (`none`, `position`, `full`), and rows from before have null in what is new; it is never
narrowed, since rows would lose what they have. The other keys count from the next load on. `time_fields` and `subject`
are also what producers and consumers look at: give their machines the same file.

`subject` is for serializers that name subjects after the record. `"shop.Order"` is the record name strategy, and
several topics may have that subject; `"{{topic}}-shop.Order"` is the topic record name strategy. A topic has one table,
of the versions of one subject: its messages of other registered schemas are rows of that table where Avro can resolve
them to it, and quarantined where not. A table keeps the subject that it was made from: when the settings name another
one, the load says so and leaves that topic alone.

With `future_records = "clamp"` a message that is dated more than `future_max` after its arrival is filed under the time
of its arrival, which is the record's timestamp unless that too lies ahead of the loader's clock, else the start of the
load. The load notes how many there were. The audit counts them in their own window, and the columns of the row keep
what the message says. Late messages are always filed under their own time.
"""


def page() -> str:
    rows = [row("data_dir", "./headrace-data", "directory of everything this installation keeps")]
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
    return INTRODUCTION + "".join(rows) + SPARK_ROW + LOG + TOPICS


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
