"""The check of a release's tag."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from headrace.version import VERSION
from support.checkout import ROOT


def test_release_tag_must_be_that_of_the_version(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location("build_wheels", ROOT / "tools" / "build_wheels.py")
        assert spec is not None
        assert spec.loader is not None
        build_wheels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build_wheels)
    finally:
        sys.path.remove(str(ROOT / "tools"))
    assert build_wheels.mismatched_tags(tmp_path) == []  # not a checkout
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "first"]):
        subprocess.run([*git, *words], check=True)
    assert build_wheels.mismatched_tags(tmp_path) == []
    for tag in ("v0.0.9", "verified"):
        subprocess.run([*git, "tag", tag], check=True)
    assert build_wheels.mismatched_tags(tmp_path) == ["v0.0.9"]
    subprocess.run([*git, "tag", f"v{VERSION}"], check=True)
    assert build_wheels.mismatched_tags(tmp_path) == []
