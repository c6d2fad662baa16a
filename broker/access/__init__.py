"""Who a client is, and what it may do: users, SASL, rights on topics and groups."""
