"""Whoever carries operations out: `spark` by the metastore client of a Spark session, `hiveserver` by HiveQL through
PyHive, `printing` as text."""
