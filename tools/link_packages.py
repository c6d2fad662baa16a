"""Links the packages of this checkout into one package `headrace`: `python3 tools/link_packages.py`.

The packages are top-level directories of the checkout and are imported as `headrace.<package>`. `setup.py` has the map
from directories to packages. Python follows it through the editable install. mypy and editors do not; they read the
packages through the links that this program creates.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE_LINKS = ROOT / ".make" / "packages"


def link_packages(target: Path = PACKAGE_LINKS) -> None:
    """Creates or updates `headrace` in the target directory, with links to each entry of `headrace/` and to each
    package.

    Raises:
        OSError: a link cannot be created.
    """
    home = target / "headrace"
    home.mkdir(parents=True, exist_ok=True)
    links = {path.name: path for path in (ROOT / "headrace").iterdir() if path.name != "__pycache__"}
    links |= {package: ROOT / package for package in package_names()}
    for link in home.iterdir():
        if links.get(link.name) != (link.readlink() if link.is_symlink() else None):
            link.unlink()
    for name, path in links.items():
        if not (home / name).is_symlink():
            (home / name).symlink_to(path)


def package_names() -> tuple[str, ...]:
    """Returns the directories that `setup.py` maps to packages in `headrace`."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PACKAGES":
            return tuple(ast.literal_eval(node.value))
    raise ValueError("setup.py assigns no PACKAGES")


if __name__ == "__main__":
    link_packages(*map(Path, sys.argv[1:2]))
