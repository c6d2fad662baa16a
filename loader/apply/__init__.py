"""Appliers carry out commits, in commit order: file index, table schema, files, partitions, audit, group offsets.

`engine` runs them topic by topic. It is stored how far each applier has applied the commits, and applying a commit
again changes nothing.
"""
