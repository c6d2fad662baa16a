"""Whoever carries operations out: `spark` by the metastore client of a Spark session, `printing` as text."""
