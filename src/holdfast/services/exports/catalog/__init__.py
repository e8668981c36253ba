"""The schema cache: what the engines' catalogs hold, for browsing and for search.

cache.py  its rows        refresh.py  the loop that reads the catalogs anew
"""
