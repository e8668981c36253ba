#!/bin/sh
# Restore a backup into a database without the schemas of Holdfast: restore.sh FILE DATABASE_URL
# All or nothing: one transaction. Afterwards run `holdfast db migrate` and `holdfast db roles --apply`. Programs: pg_restore, psql.
set -eu
if [ $# -ne 2 ]; then echo "usage: restore.sh FILE DATABASE_URL" >&2; exit 2; fi
file=$1 url=$2 here=$(dirname "$0")
there=$(psql -X -At -v ON_ERROR_STOP=1 -c "SELECT to_regclass('holdfast.jobs') IS NOT NULL" "$url")
if [ "$there" = t ]; then
  echo "this database has jobs already; restore into an empty one, and change HOLDFAST_DATABASE_URL" >&2; exit 1
fi
psql -X -q -v ON_ERROR_STOP=1 -c "DROP SCHEMA IF EXISTS holdfast, holdfast_iceberg" "$url"
pg_restore --single-transaction --exit-on-error --no-owner --no-privileges --dbname="$url" "$file"
psql -X -q -v ON_ERROR_STOP=1 -f "$here/after-loss.sql" "$url" > /dev/null
psql -X -At -v ON_ERROR_STOP=1 -c "SELECT 'restored ' || count(*) || ' jobs' FROM holdfast.jobs" "$url"
