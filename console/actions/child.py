"""A program that replaces itself with another one, which the kernel then ends with the console (Linux).

    child.py PARENT PROGRAM ARGUMENT…

PARENT is the process id of the console. It cannot be done between fork and exec of a process with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # prctl(2); survives exec


def main(parent: str, *command: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main(*sys.argv[1:])
