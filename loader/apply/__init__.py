"""Appliers carry out commits, in commit order: table schema, files, partitions, audit, group offsets.

`engine` runs them topic by topic. Each applier stores how far it has applied the commits, and applying a commit again
changes nothing.
"""
