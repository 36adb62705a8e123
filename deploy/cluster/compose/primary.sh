#!/bin/sh
# Lets the standbys in: they copy the primary and follow it as the user of the database.
set -eu
echo "host replication penstock samenet scram-sha-256" >> "$PGDATA/pg_hba.conf"
