"""Runs a load with its driver on YARN: `spark-submit --deploy-mode cluster … load.py --config headrace.toml`."""

import sys

from headrace.cli import main

sys.exit(main(["load", *sys.argv[1:]]))
