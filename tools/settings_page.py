"""Generates docs/settings.md from settings/sections.py: `python tools/settings_page.py`. A test fails if the page
differs from the generated one."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

from headrace.cli.command import FLAGS
from headrace.settings import CHOICES, ENVIRONMENT_PREFIX, TOPIC_KEYS, Settings
from headrace.settings.log_format import FORMAT_VARIABLE, FORMATS, LEVEL_VARIABLE, LOG_DEFAULTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
INTRODUCTION = f"""# Settings

Each source overrides the ones before it: defaults, settings file, environment, flags.

- **File**: the one named by `--config` or `HEADRACE_CONFIG`, else `headrace.toml` in the working directory, else
  `~/.config/headrace/headrace.toml`.
- **Environment**: `{ENVIRONMENT_PREFIX}<SECTION>__<KEY>`, for example `{ENVIRONMENT_PREFIX}LOADER__PARTITION_BY=day`.
- **Durations** are written `500ms`, `90s`, `10m`, `2h` or `7d`.
- **Relative paths**: `data_dir`, `loader.warehouse` and `loader.state` of a file are relative to the file's directory,
  and so is the default of `data_dir` if there is a file. All other paths are relative to the working directory.
- **Unknown keys** are errors.

| key | flag | default | meaning |
|---|---|---|---|
"""
SPARK_ROW = (
    "| `spark.*` | `--master` for `spark.master` | `master = local[*]` | passed through to Spark: `master`, and any "
    "`spark.` property without its prefix |\n"
)

LOG = f"""
## Log format

Two environment variables configure the log, because logging starts before settings are read:

| variable | default | meaning |
|---|---|---|
| `{LEVEL_VARIABLE}` | `{LOG_DEFAULTS[LEVEL_VARIABLE]}` | lowest level that is logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`; on a terminal log lines appear only if it is set |
| `{FORMAT_VARIABLE}` | `{LOG_DEFAULTS[FORMAT_VARIABLE]}` | one of {", ".join(FORMATS)}; `json` writes one JSON object per line |

Invalid values are ignored. A variable with a similar name, or a setting's variable with too few underscores, is an error.
"""  # noqa: E501  (lines of a table)

TOPICS = f"""
## Settings for some topics

A settings file may contain any number of `[[loader.topic]]` tables:

```toml
[[loader.topic]]
pattern = "clicks|page\\\\..*"          # regular expression that matches the whole topic name
partition_by = "day"
quarantine_ratio_max = 0.01

[[loader.topic]]
pattern = ".*"
future_records = "clamp"
```

A table may contain these keys, with the same meaning as in `[loader]`:
{", ".join(f"`{key}`" for key in TOPIC_KEYS)}.
For each key, the first table counts that matches the topic and contains the key. Without such a table the value of
`[loader]` applies. Tables cannot be set in the environment or on the command line.

Most keys take effect at the next load. Exceptions and details:

- `partition_by` is fixed when a topic's table is created. An existing table keeps its value, and the load reports the
  difference unless the setting is `auto`. `headrace hive repartition TOPIC --by hour` or `day` changes the partitioning
  of a table ([tables.md](tables.md#changing-the-partitioning)).
- With `partition_by = "auto"` a table is partitioned by day (column `dt`), unless the topic's first load has at least
  64 MiB of files per hour of message time. Then it is partitioned by hour (`dt` and `hr`), and that load reads the
  topic's messages twice. Only ten-minute windows with messages count, and at least one hour, so a topic that is new
  while loads run every ten minutes is partitioned by day. So is a topic without messages in its first load. Partitions
  by day suit most topics: each load adds fewer files, and a query without a condition on `dt` is faster. Set `hour` for
  topics of over 1.5 GB of files a day whose queries read single hours.
- `kafka_column` can be widened (`none`, `position`, `full`); existing rows then have null in the new fields. It is
  never narrowed, because existing rows would lose data.
- `time_fields` and `subject` are also used by producers and consumers. Give them the same settings file.
- `subject` supports serializers that name subjects after records. `"shop.Order"` is the record name strategy, and
  several topics may share this subject. `"{{topic}}-shop.Order"` is the topic record name strategy. A topic has one
  table, built from the versions of one subject. Messages with other registered schemas become rows if the table has a
  column for each of their fields and can do without its other columns; otherwise they are quarantined. A field without
  a column is one reason, although Avro's reader would drop its values. If the setting names another subject than the
  existing table, the load reports this and does not load the topic.
- `future_records = "clamp"` applies to a message that is dated more than `future_max` after its arrival: its time
  partition is that of its arrival. The arrival is the record timestamp, or the start of the load if the record
  timestamp is also ahead of the loader's clock. The load reports the number of such messages, the audit counts them in
  a window of their own, and the row's columns keep the message's time. Late messages always keep their own time
  partition.
"""


def page() -> str:
    rows = [row("data_dir", "./headrace-data", "directory of all files of this installation")]
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
    """Returns the description of a setting: the comment on the line of its field, else the comment lines above it, else
    the help text of its command-line flag. Permitted values that the text does not name follow it.

    Args:
        key: dotted key of the setting.
        lines: lines of the source file.
        node: definition of the field.
    """
    same_line = re.search(r"  # (.*)$", lines[(node.end_lineno or node.lineno) - 1])
    comments = itertools.takewhile(bool, (re.match(r"\s*# (.*)$", line) for line in reversed(lines[: node.lineno - 1])))
    above = " ".join(reversed([comment[1] for comment in comments if comment]))
    text = same_line[1] if same_line else above or (FLAGS[key].help if key in FLAGS else "")
    if key in CHOICES and not all(choice in text for choice in CHOICES[key]):
        text = f"{text}; one of {', '.join(CHOICES[key])}" if text else f"one of {', '.join(CHOICES[key])}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
