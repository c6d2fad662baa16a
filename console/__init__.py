"""The console: web pages that show whether messages are complete, drawn by the server.

To add a page: a module with a blueprint in `pages/`, a template in `templates/`, and a row of `pages.PAGES`. A page
reads through functions of the package that owns the data, within `ConsoleContext.sources`, so that a failing or slow
source leaves a sentence in the page and never an error.
"""
