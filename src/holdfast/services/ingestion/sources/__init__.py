"""Where rows come from: files in a store (CSV, XLSX, Parquet) and paged HTTP APIs.

dialect.py   detect how a CSV file is written     csv_chunks.py   a CSV file as pieces that COPY accepts
sheets.py    XLSX      columnar.py   Parquet      opening.py      which of them reads a file
parquet_pages.py  the memory that the pages of a Parquet file take
uploads.py   receive an upload                    files.py        the rows of uploaded files
pages.py     a paged HTTP API with a cursor
"""
