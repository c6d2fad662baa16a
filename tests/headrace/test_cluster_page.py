"""What docs/cluster.md has people write is what the command understands; tests/component/yarn runs it."""

from __future__ import annotations

from pathlib import Path

from checkout import ROOT
from headrace.cli import _parser
from headrace.settings import load_settings
from pages import block, page

PAGE = page("docs/cluster.md")


def test_the_settings_are_known(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(block(PAGE, "# /etc/headrace/headrace.toml"), encoding="utf-8")
    settings = load_settings(config=file)
    assert settings.loader.warehouse == "hdfs://nameservice/data/headrace"
    assert (settings.spark["master"], settings.spark["pyspark.python"]) == ("yarn", "./env/bin/python")
    assert settings.spark["yarn.dist.archives"].endswith("#env")


def test_the_script_for_cluster_mode_runs_a_load_with_the_words_of_the_page() -> None:
    script = (ROOT / "examples" / "cluster" / "load.py").read_text(encoding="utf-8")
    assert 'main(["load", *sys.argv[1:]])' in script
    line = block(PAGE, "spark-submit").replace("\\\n", " ")
    words = line.split("load.py", 1)[1].split()
    assert _parser(["load", *words]).parse_args(["load", *words]).config == Path("headrace.toml")
