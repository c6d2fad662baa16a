"""The hot loops: what a body must be, and what it becomes in the load schema.

`reference` is the meaning, in Python. Whatever replaces it must pass the same tests.
"""

from headrace.loader.native.readable import UnreadableValue
from headrace.loader.native.reference import BUILD, Unconvertible, compile_projection, compile_time_walk
from headrace.loader.native.walk import BadBody, Seen

__all__ = ["BUILD", "BadBody", "Seen", "Unconvertible", "UnreadableValue", "compile_projection", "compile_time_walk"]
