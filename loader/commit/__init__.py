"""The commit log, on which exactly-once rests: `commit_log` puts a `commit` into the next commit number if it is free
and `conflict` finds nothing against it; `state` is what all commits add up to. Imports no other stage."""
