"""Makes sure that programs of Debian's packages are here: `python3 tools/setup_packages.py PACKAGE…`.

The tests start servers of their own from PostgreSQL's programs and remove them again, so that package's own server is
neither needed nor started. On Debian and Ubuntu, as root, what is missing is installed; elsewhere one line says what to
do.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

DEBIAN_VERSIONS = Path("/usr/lib/postgresql")
CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")
LOG = Path(__file__).resolve().parent.parent / ".make" / "packages.log"


class SetupError(Exception):
    """What cannot be done, in one line."""


def _has_postgres() -> bool:
    return any(DEBIAN_VERSIONS.glob("*/bin/postgres")) or shutil.which("postgres") is not None


def _has_kcat() -> bool:
    return shutil.which("kcat") is not None


PACKAGES: dict[str, tuple[str, Callable[[], bool]]] = {
    "postgresql": ("PostgreSQL's server (initdb and postgres)", _has_postgres),
    "kcat": ("kcat", _has_kcat),
}
"""What each is wanted for, and whether that is here already."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", choices=PACKAGES, metavar="PACKAGE", help=" or ".join(PACKAGES))
    try:
        prepare(parser.parse_args().packages)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(packages: Sequence[str]) -> None:
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt-get fails while another one runs
        _install_missing(packages)


def _install_missing(packages: Sequence[str]) -> None:
    missing = [package for package in packages if not PACKAGES[package][1]()]
    if not missing:
        return
    what = " and ".join(PACKAGES[package][0] for package in missing)
    if shutil.which("apt-get") is None:
        raise SetupError(f"missing: {what}; install it with the system's packages")
    if os.geteuid() != 0:
        raise SetupError(f"missing: {what}; run: sudo apt-get install {' '.join(missing)}")
    print(f"set-up: missing: {what}; installing Debian's {' '.join(missing)} (log: {LOG})", flush=True)
    if "postgresql" in missing and not CLUSTER_SETTINGS.exists():
        # Else the package makes a database of its own and starts a server on port 5432.
        CLUSTER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTER_SETTINGS.write_text("create_main_cluster = false\n", encoding="utf-8")
    run("apt-get", "update")
    # `--force-confold`, because the settings above are there before the package that brings the file.
    run("apt-get", "install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", *missing)
    for package in missing:
        if not PACKAGES[package][1]():
            raise SetupError(f"the package {package} did not bring {PACKAGES[package][0]}; see {LOG}")


def run(*command: str) -> None:
    with LOG.open("ab") as log:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
        )
    if ended.returncode:
        raise SetupError(f"{' '.join(command)} ended with {ended.returncode}; see {LOG}")


if __name__ == "__main__":
    sys.exit(main())
