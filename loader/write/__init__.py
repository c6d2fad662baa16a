"""Writes rows to files: `time_partitions` computes the time partition of a row, `range_rows` buffers the rows of a
range until its read has ended, `task_files` writes container files, `container` is their format."""
