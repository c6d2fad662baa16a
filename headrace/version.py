"""The version of this distribution; `setup.py` reads it from here."""

VERSION = "0.1.0"
