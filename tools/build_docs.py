"""Builds the site of the documentation in build/site: all pages, the commands from their `--help`, and the API of the
public names from their docstrings.

`make docs` runs it with the libraries of `tools/docs-requirements.txt`. A broken link or a missing anchor is an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / ".make" / "docs-source"
CONFIGURATION = ROOT / "tools" / "mkdocs.yml"

COPIED = ("docs", "examples", "CHANGELOG.md", "CONTRIBUTING.md", "Dockerfile", "compose.yaml", ".pre-commit-hooks.yaml")
"""Pages, and files that pages refer to, with the paths of the checkout, so that relative links stay valid."""

RETURNED = {
    "headrace.clients.consumer": ("Message",),
    "headrace.clients.delivery": ("Delivery", "RecordMetadata"),
}
"""Classes of values that methods of the public names return, by their module."""

API_PAGES = {
    "clients": ("Producers and consumers", ("headrace.clients",)),
    "registry": ("Registry client", ("headrace.registry",)),
    "settings": ("Settings and audit counts", ("headrace.settings", "headrace.audit")),
}
"""The pages of the API: file name, title, and the packages whose public names are on the page."""


def main() -> int:
    """Copies the pages and runs MkDocs; returns its exit code."""
    sys.path.insert(0, str(ROOT / ".make" / "packages"))
    from headrace import _NAMES_BY_MODULE

    shutil.rmtree(SOURCE, ignore_errors=True)
    copy_pages()
    public = {
        module: (*_NAMES_BY_MODULE.get(module, ()), *RETURNED.get(module, ()))
        for module in (*_NAMES_BY_MODULE, *RETURNED)
    }
    write_api_pages(public)
    write_commands_page()
    configuration = SOURCE.parent / "mkdocs.yml"
    configuration.write_text(configured_text(), encoding="utf-8")
    return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "-f", str(configuration)]).returncode


def copy_pages() -> None:
    """Copies the pages to `SOURCE`; README.md becomes the page index.md."""
    for name in COPIED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, SOURCE / name)
        else:
            shutil.copy(path, SOURCE / name)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (SOURCE / "index.md").write_text(with_links_to_files(readme), encoding="utf-8")
    for page in (SOURCE / "docs").rglob("*.md"):
        page.write_text(with_links_to_files(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_links_to_files(text: str) -> str:
    """Returns the text of a page with links to README.md and to directories changed to links to pages."""
    text = re.sub(r"\]\((\.\./)README\.md", r"](\1index.md", text)
    text = text.replace("](docs/decisions)", "](docs/decisions/0001-commit-log.md)")
    return text.replace("](../examples/registry)", "](../examples/registry/kubernetes.yaml)")


def write_commands_page() -> None:
    """Writes the page with the help of all commands."""
    from headrace.cli.manual import reference_page

    (SOURCE / "commands.md").write_text(reference_page(), encoding="utf-8")


def write_api_pages(modules: Mapping[str, tuple[str, ...]]) -> None:
    """Writes the pages of the API.

    Args:
        modules: the public names of each module.
    """
    for page, (title, packages) in API_PAGES.items():
        names = [(name, module) for module, public in modules.items() if module.startswith(packages) for name in public]
        sections = [f"::: {module}.{name}\n" for name, module in sorted(names, key=lambda each: each[1])]
        head = f"# {title}\n\nImport the names from `headrace`: `from headrace import {names[0][0]}`.\n\n"
        path = SOURCE / "api" / f"{page}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(head + "\n".join(sections), encoding="utf-8")


def configured_text() -> str:
    """Returns the configuration of MkDocs with the decisions, and other pages that its navigation lacks."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    configuration = yaml.safe_load(text)
    pages = sorted(path.relative_to(SOURCE).as_posix() for path in (SOURCE / "docs").rglob("*.md"))
    reference = configuration["nav"][-1]["Reference"]
    reference[-1]["Decisions"] = [page for page in pages if page.startswith("docs/decisions/")]
    reference += [page for page in pages if f" {page}\n" not in text and not page.startswith("docs/decisions/")]
    return str(yaml.safe_dump(configuration, sort_keys=False))


if __name__ == "__main__":
    sys.exit(main())
