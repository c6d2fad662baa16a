"""Support code for tests: data generators, reference implementations, fakes and third-party servers. This package has
no tests.

A subpackage serves one part of the product or one kind of test. Modules for any test are at the top level.
"""
