"""Transactions: chunks that are written to a topic as a whole and exactly once.

A chunk is stored on disk, converted, and committed with one Kafka transaction.
`docs/decisions/0012-gateway-transactions.md` has the design.
"""
