"""Appliers carry out commits, in commit order: table schema, files, partitions, audit, group offsets.

`engine` runs them topic by topic. Each applier has a position of its own, and applying a commit again changes nothing.
"""
