"""The push client: tails files and sends their lines to a gateway, each line exactly once and in order.

`tailer` reads files and `sender` delivers chunks, in two threads that share the sources of `source`. The rules are pure
functions: `rules` decides what to do with a file, a session or a failed request, `cutting` turns bytes into chunks.
`identity` recognizes a file after a rename, `copies` a rotated copy by its content.

The package imports the standard library alone and runs on Python 3.9, so that `make_zipapp` can pack it into one file
for hosts without Headrace.
"""
