"""Appliers bring about what was committed, in commit number order and each with its own cursor: table schema, files,
partitions, audit, group offsets. `engine` runs them, per topic; each may do again what it did before."""
