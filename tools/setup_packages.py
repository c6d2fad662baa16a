"""Installs missing Debian packages: `python3 tools/setup_packages.py PACKAGE…`. With `--unpack DIRECTORY`, unpacks them
there instead: installing Prometheus would start it.

The tests start and remove their own PostgreSQL servers; the server of the package is neither needed nor started. On
Debian and Ubuntu, as root, missing packages are installed; elsewhere an error names the remedy.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

DEBIAN_VERSIONS = Path("/usr/lib/postgresql")
CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")
LOG = Path(__file__).resolve().parent.parent / ".make" / "packages.log"


class SetupError(Exception):
    """The reason why set-up failed, in one line."""


def _has_postgres() -> bool:
    return any(DEBIAN_VERSIONS.glob("*/bin/postgres")) or shutil.which("postgres") is not None


def _has_kcat() -> bool:
    return shutil.which("kcat") is not None


def _has_chromium() -> bool:
    return shutil.which("chromium") is not None


PACKAGES: dict[str, tuple[str, Callable[[], bool]]] = {
    "postgresql": ("PostgreSQL's server (initdb and postgres)", _has_postgres),
    "kcat": ("kcat", _has_kcat),
    "chromium": ("Chromium", _has_chromium),
}
"""By Debian package: the programs that it contains, and a function that returns whether they are installed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help=f"{' or '.join(PACKAGES)}; any with --unpack")
    parser.add_argument("--unpack", type=Path, metavar="DIRECTORY", help="unpack the packages there, if it is missing")
    args = parser.parse_args()
    unknown = [name for name in args.packages if name not in PACKAGES]
    if args.unpack is None and unknown:
        parser.error(f"unknown packages: {' '.join(unknown)}; choose from {' '.join(PACKAGES)}")
    try:
        prepare(args.packages) if args.unpack is None else unpack(args.packages, args.unpack)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(packages: Sequence[str]) -> None:
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # apt-get fails while another apt-get runs
        _install_missing(packages)


def unpack(packages: Sequence[str], directory: Path) -> None:
    """Downloads Debian packages and unpacks them, unless the directory exists.

    Raises:
        SetupError: the system is not Debian, or the download failed.
    """
    if directory.exists():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SetupError(f"missing: {' and '.join(packages)}; install them with the system's packages")
    with tempfile.TemporaryDirectory(dir=LOG.parent) as scratch:
        run("apt-get", "download", *packages, directory=Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        for package in sorted(Path(scratch).glob("*.deb")):
            run("dpkg-deb", "--extract", str(package), str(unpacked))
        unpacked.rename(directory)


def _install_missing(packages: Sequence[str]) -> None:
    missing = [package for package in packages if not PACKAGES[package][1]()]
    if not missing:
        return
    programs = " and ".join(PACKAGES[package][0] for package in missing)
    if shutil.which("apt-get") is None:
        raise SetupError(f"missing: {programs}; install it with the system's packages")
    if os.geteuid() != 0:
        raise SetupError(f"missing: {programs}; run: sudo apt-get install {' '.join(missing)}")
    print(f"set-up: missing: {programs}; installing Debian's {' '.join(missing)} (log: {LOG})", flush=True)
    if "postgresql" in missing and not CLUSTER_SETTINGS.exists():
        # Otherwise the package creates a database and starts a server on port 5432.
        CLUSTER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTER_SETTINGS.write_text("create_main_cluster = false\n", encoding="utf-8")
    run("apt-get", "update")
    # `--force-confold` keeps the file written above, which the package also contains.
    run("apt-get", "install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", *missing)
    for package in missing:
        if not PACKAGES[package][1]():
            raise SetupError(f"after the installation of {package}, missing: {PACKAGES[package][0]}; see {LOG}")


def run(*command: str, directory: Path | None = None) -> None:
    with LOG.open("ab") as log:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
            cwd=directory,
        )
    if completed.returncode:
        raise SetupError(f"{' '.join(command)} ended with {completed.returncode}; see {LOG}")


if __name__ == "__main__":
    sys.exit(main())
