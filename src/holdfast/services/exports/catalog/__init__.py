"""The schema cache: the catalogs, schemas, tables and columns of the engines, for browsing and search.

cache.py  its rows        refresh.py  the loop that refreshes it
"""
