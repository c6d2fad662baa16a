"""Reads record batches and returns records. `units` runs the tasks of a plan, and continues after unknown schema ids.
In each task, `range_reader` fetches one range and classifies each of its offsets."""
