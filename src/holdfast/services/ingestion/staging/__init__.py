"""Staging: the rows of one attempt as text, in tables of its own, and their validation by SQL.

tables.py    create, fill and drop them      columns.py   which column of a file is which of the model
checks.py    the SQL of one column           validate.py  find the bad rows          errors.py   list and download them
"""
