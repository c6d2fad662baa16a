"""The commit log, the basis of exactly-once loading.

`reconcile`, `revalidate` and `findings` check the results of the tasks, `prepare` builds a `commit` from them, and
`commit_log` appends it as a numbered file unless `conflict` finds a reason against it. `state` is the state of the
loader after all commits.
"""
