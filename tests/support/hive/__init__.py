"""Hive tables in tests: the engines that read and write them, the cases of docs/hive.md, and the recorded result of
each engine."""
