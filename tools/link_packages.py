"""Shows the rooms of this checkout as the package that they are when installed: `python3 tools/link_packages.py`.

The rooms stand at the top level of the checkout and are imported as `headrace.<room>`, which `setup.py` maps. Python
follows that map through the editable install; mypy and editors do not, and read the same through a tree of links.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / ".make" / "packages"


def link_packages(packages: Path = PACKAGES) -> None:
    """Makes `packages/headrace`, or brings it up to date: links to what is in `headrace/`, and to each room.

    Raises:
        OSError: a link cannot be made.
    """
    home = packages / "headrace"
    home.mkdir(parents=True, exist_ok=True)
    wanted = {path.name: path for path in (ROOT / "headrace").iterdir() if path.name != "__pycache__"}
    wanted |= {room: ROOT / room for room in rooms()}
    for link in home.iterdir():
        if wanted.get(link.name) != (link.readlink() if link.is_symlink() else None):
            link.unlink()
    for name, path in wanted.items():
        if not (home / name).is_symlink():
            (home / name).symlink_to(path)


def rooms() -> tuple[str, ...]:
    """The directories that `setup.py` maps to packages below `headrace`."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS":
            return tuple(ast.literal_eval(node.value))
    raise ValueError("setup.py assigns no ROOMS")


if __name__ == "__main__":
    link_packages(*map(Path, sys.argv[1:2]))
