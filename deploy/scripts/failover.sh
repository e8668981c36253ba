#!/bin/sh
# Promote a standby: failover.sh PRIMARY_URL STANDBY_URL
# Refuses while the primary answers: two primaries would both accept writes. Programs: psql.
set -eu
if [ $# -ne 2 ]; then echo "usage: failover.sh PRIMARY_URL STANDBY_URL" >&2; exit 2; fi
primary=$1 standby=$2 here=$(dirname "$0")
if PGCONNECT_TIMEOUT=5 psql -X -At -c "SELECT 1" "$primary" > /dev/null 2>&1; then
  echo "the primary still answers; stop it, or make sure that nothing can reach it, and run this again" >&2; exit 1
fi
seen=$(psql -X -At -v ON_ERROR_STOP=1 -c "SELECT coalesce(pg_last_xact_replay_timestamp()::text, 'unknown')" "$standby")
psql -X -q -v ON_ERROR_STOP=1 -c "SELECT pg_promote(true, 60)" "$standby" > /dev/null
if [ "$(psql -X -At -c "SELECT pg_is_in_recovery()" "$standby")" != f ]; then
  echo "the standby was not promoted within 60 s; see its log" >&2; exit 1
fi
psql -X -q -v ON_ERROR_STOP=1 -f "$here/after-loss.sql" "$standby" > /dev/null
echo "promoted; the last transaction that it has is of $seen. What was acknowledged later by an asynchronous primary is lost."
