"""Reads record batches and returns records. `units` runs the tasks of a plan, and continues after schema ids that the
registry does not have. In each task, `range_reader` fetches one range and classifies each of its offsets."""
