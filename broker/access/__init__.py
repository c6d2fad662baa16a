"""Access to the broker: SASL login of users, and their permissions on topics, groups and transactional ids."""
