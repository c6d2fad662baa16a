"""Rows to files: `time_partitions` says which partition a time is filed under, `range_rows` holds the rows of a range
until it is whole, `task_files` makes container files of them, `container` is their format."""
