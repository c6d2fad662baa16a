#!/bin/sh
# What the shell action of workflow.xml runs, with that one's arguments. Oozie does it on any machine of YARN, in a directory
# and with an environment of its own: so each machine has Headrace and its settings at these places, and mounts `data_dir`.
exec /opt/headrace/.venv/bin/headrace load --config /etc/headrace/headrace.toml "$@"
