"""Real servers that are not ours, started on loopback and free ports,
with the Maven poms of those that Maven fetches.
"""
