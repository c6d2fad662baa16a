"""Posts the messages of topics to URLs, in batches: at least once, and in the order of each partition.

Modules: `outcome` classifies responses, `signature` signs requests, `post` sends them, and `delivery` reads,
delivers and commits.
"""
