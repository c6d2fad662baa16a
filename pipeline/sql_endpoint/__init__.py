"""The SQL endpoint of `headrace up` for BI tools: HiveServer2's protocol with TLS, users and permissions.

`wire` has the bytes of a connection, `messages` the requests and responses, `statements` the permitted SQL, `sessions`
the rules for handles and requests; these decide and do no I/O. `access` has the users, `spark_service` runs requests
in Spark's JVM, `server` accepts connections. Read `server` first.
"""
