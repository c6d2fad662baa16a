"""The program `headrace`, also `python -m headrace`."""

import sys


def main() -> int:
    """Runs the command line of the process, and returns its exit code as `headrace.cli.main` does."""
    try:
        # Imported here because Ctrl-C during the import is an interrupted command, too.
        from headrace import cli

        return cli.main()
    except KeyboardInterrupt:
        print("headrace: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
