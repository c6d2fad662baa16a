"""One partition on disk: segments with indexes, appending, finding, recovery after a crash."""
