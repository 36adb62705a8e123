#!/bin/sh
# A standby of PostgreSQL: a copy of the primary when it is first started, then its follower.
#   PRIMARY   host of the primary, with PRIMARY_PORT if it is not 5432
#   STANDBY   name of this standby in synchronous_standby_names
#   PGDATA    its folder; POSTGRES_PASSWORD is that of the user penstock, if one is asked for
set -eu
export PGPASSWORD="${POSTGRES_PASSWORD:-}"
port="${PRIMARY_PORT:-5432}"
if [ "$(id -u)" = 0 ]; then
  # The image starts as root, and PostgreSQL refuses to.
  mkdir -p "$PGDATA"
  chown -R postgres:postgres "$(dirname "$PGDATA")"
  exec gosu postgres sh "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  rm -rf "$PGDATA.copy"
  pg_basebackup --pgdata="$PGDATA.copy" --write-recovery-conf --wal-method=stream --checkpoint=fast \
    --dbname="host=$PRIMARY port=$port user=penstock application_name=$STANDBY"
  # A copy counts when it is whole.
  chmod 0700 "$PGDATA.copy"
  rmdir "$PGDATA" 2>/dev/null || true
  mv "$PGDATA.copy" "$PGDATA"
fi
exec postgres -D "$PGDATA" "$@"
