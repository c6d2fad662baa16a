#!/bin/sh
# Run by the shell action of workflow.xml with its arguments. Oozie starts it on any machine of YARN with another directory and
# environment, so each machine needs Headrace and its settings at these paths, and must mount `data_dir`.
exec /opt/headrace/.venv/bin/headrace load --config /etc/headrace/headrace.toml "$@"
