#!/bin/sh
# Back up the schemas of Holdfast, with the embedded Iceberg catalog, into one file: backup.sh DATABASE_URL FILE
# Works while everything runs; the file is a consistent snapshot of the moment at which it began. Programs: pg_dump.
set -eu
if [ $# -ne 2 ]; then echo "usage: backup.sh DATABASE_URL FILE" >&2; exit 2; fi
url=$1 file=$2
if [ -e "$file" ]; then echo "$file exists; name another file" >&2; exit 1; fi
pg_dump --format=custom --schema=holdfast --schema=holdfast_iceberg --no-owner --no-privileges --lock-wait-timeout=5s --file="$file.part" "$url"
mv "$file.part" "$file"
echo "backed up to $file"
