"""What the tests stand on: worlds, oracles, fakes and real servers. Not tests themselves.

A directory for each part of the product or kind of test that it serves; modules that any test may need are here.
"""
