"""What an operator sees of a running registry: metrics and the access log."""
