"""Authentication and authorization of clients: users, SASL, permissions on topics and groups."""
