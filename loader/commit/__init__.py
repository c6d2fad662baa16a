"""The commit log, the basis of exactly-once loading.

`reconcile`, `revalidate` and `findings` check the results of the tasks, `prepare` builds a `commit` from them, and
`commit_log` appends it as a numbered file if `conflict` finds no reason against it. `state` is the sum of all commits.
"""
