"""Requests to the registry, a model of its responses, and substitutes for other registries."""
