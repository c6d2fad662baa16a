"""Commands that change published files.

`expire` removes old time partitions, `compact` merges small files (`merge` is its task,
`backlog` the list of days to examine), `accept_missing` accepts lost
files, `replay` retries quarantined messages, `discard` removes them, and `backfill` reads offsets again from the
brokers (`closure`: files that must be replaced together; `origin`: files with rows of an earlier log; `reread`: whether
the messages read again match the files). Each makes commits that rewrite time partitions, and is safe while loads run.
`retire` deletes replaced files once no query reads them.
"""
