"""Makes an environment with another release of Spark: `.venv/bin/python tools/spark_environment.py 3.5.7`.

It is `.make/spark-<release>`, has pyspark of that release and takes everything else from `.venv`, this checkout too.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def make(release: str) -> None:
    directory = ROOT / ".make" / f"spark-{release}"
    stamp = directory / ".complete"
    if stamp.exists():
        return
    venv.create(directory, clear=True, with_pip=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, f"pyspark=={release}"], check=True)
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}))
    # Not as a bare path, since the other environment's own .pth files count too.
    (theirs / "rest.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    program = directory / "bin" / "headrace"
    program.write_text(
        f"#!{directory}/bin/python\nimport sys\n\nfrom headrace.cli import main\n\nsys.exit(main(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    stamp.touch()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} RELEASE")
    make(sys.argv[1])
