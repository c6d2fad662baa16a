"""Operation of a running registry: metrics, access log and audit log."""
