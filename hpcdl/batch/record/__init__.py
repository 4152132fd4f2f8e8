"""A machine's record: which nodes idle over time, in a folder that grows by a line for each change, for weeks.

`lines` is its format, `folder` its files, `recorder` what writes it, `pieces` what is read of it. docs/record.md.
"""
