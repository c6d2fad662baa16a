"""Commands, settings and links of README, docs/ and examples/ are valid."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from headrace.cli import _parser
from headrace.settings import SettingsError, load_settings
from support.checkout import ROOT
from support.pages import block, blocks, page

PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"))
)

FILES_WITH_INSTALLS = sorted(
    {
        *(ROOT / path for path in PAGES),
        *(ROOT.glob("*.md")),
        *(path for path in ROOT.glob("examples/**/*") if path.is_file()),
        *ROOT.glob("headrace/cli/*.py"),
        ROOT / "Dockerfile",
        ROOT / "compose.yaml",
    }
)


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words after `headrace` of each command of a page.

    A command in a block is complete. One in a sentence may lack arguments, so its words end in `--help`.
    """
    typed = "\n".join(blocks(text, "(?:sh|console)"))
    for line in re.findall(r"^(?:\$ |[A-Z_]+=\S* )*(?:\S*/)?headrace (.*)", typed, re.MULTILINE):
        words = shlex.split(line, comments=True)
        yield list(itertools.takewhile(lambda word: word not in ("|", ">", ">>", "&"), words))
    for named in re.findall(r"`headrace ([a-z]+[^`\n…]*)`", text):
        yield [*shlex.split(named), "--help"]


def is_command(words: list[str]) -> bool:
    try:
        _parser(words).parse_args(words)
    except SystemExit as ended:
        return ended.code == 0
    return True


def test_commands_of_pages_parse() -> None:
    shown = [(path, words) for path in PAGES for words in commands(page(path))]
    assert [(path, shlex.join(words)) for path, words in shown if not is_command(words)] == []


def test_settings_of_pages_load(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    errors = []
    for path, code in ((each, code) for each in PAGES for code in blocks(page(each), "toml")):
        if path == "docs/push.md":
            continue  # configurations of the push client, see tests/push/test_push_command.py
        file.write_text(code)
        try:
            load_settings(config=file)
        except SettingsError as error:
            errors.append((path, str(error)))
    assert errors == []


def test_links_of_pages_have_targets() -> None:
    links = [(path, *link) for path in PAGES for link in re.findall(r"\]\((?!http)([^)#\s]*)(#[^)\s]+)?\)", page(path))]
    assert [link for link in links if not has_target(*link)] == []


def has_target(path: str, target: str, anchor: str) -> bool:
    """Returns whether the target of a link in `path` exists and has the heading of its anchor ("": none)."""
    file = (ROOT / path).parent / target if target else ROOT / path
    if not file.exists() or not anchor:
        return file.exists()
    headings = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
    return anchor[1:] in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def installs_by_name(text: str) -> list[str]:
    """Returns the arguments of each `pip install` that takes Headrace by its name from an index."""
    return [
        arguments
        for arguments in re.findall(r"\bpip3? install([^`\n]*)", text)
        if "--no-index" not in arguments and re.search(r"(?<=[\s'\"])headrace(\[[^]]*\])?(?![\w/.[-]| @ )", arguments)
    ]


def test_no_file_installs_headrace_by_a_name_that_others_could_register() -> None:
    found = {path: installs_by_name(path.read_text(errors="replace")) for path in FILES_WITH_INSTALLS}
    assert {path: arguments for path, arguments in found.items() if arguments} == {}


def test_installs_by_name_are_recognized() -> None:
    matching = ("pip install headrace", "pip install -q 'headrace[all]'", "x: \"pip install 'headrace[{extra}]', or\"")
    assert [len(installs_by_name(each)) for each in matching] == [1, 1, 1]
    for other in (
        "pip install '.[all]'",
        "pip install 'headrace[all] @ git+https://HOST/PATH/headrace@COMMIT'",
        "pip install /srv/headrace",
        "pip install ./headrace-0.1.0-py3-none-any.whl",
        "pip install headrace-0.1.0.whl",
        "pip install --no-index --find-links wheels 'headrace[all]'",
        "`pip install .` brings headrace",
    ):
        assert installs_by_name(other) == [], other


def test_first_schema_of_orders_is_the_same_on_all_pages() -> None:
    """The pages continue each other; tests/component/everything/test_up.py runs them in order."""
    typed = re.findall(r"-d '(.*)'", block(page("README.md"), "curl"))[0]
    in_readme = json.loads(json.loads(typed)["schema"])
    in_tutorial = block(page("docs/tutorial.md"), "mkdir -p schemas").partition("<<'END'\n")[2].partition("END")[0]
    in_clients = re.findall(r'ORDER = """(.*?)"""', page("docs/clients.md"), re.DOTALL)[0]
    assert json.loads(in_tutorial) == json.loads(in_clients) == in_readme
