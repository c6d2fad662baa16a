"""`headrace status`: facts about the whole platform, and findings that need action.

`finding` has the values and the table of kinds, `collect` the function `platform_status` and the table of sources, the
other modules one source each.
"""
