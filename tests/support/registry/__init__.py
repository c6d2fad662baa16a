"""The registry: calls exactly as on the wire, the model of its responses,
and stand-ins for other registries.
"""
