"""Drawings as SVG path data, from values. Pure functions; the macros of `templates/_drawing.html` place them."""
