"""The log of one partition on disk: segments and their indexes, appends, reads, and recovery after a crash."""
