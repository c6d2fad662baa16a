"""Raw batches in, records out: `units` runs the tasks of a plan, on past unknown schema ids; in a task `range_reader`
fetches one range and classifies every offset of it."""
