#!/usr/bin/env bash
# Run once by the image of PostgreSQL, when its volume is empty: a separate user and database for each.
set -euo pipefail

secrets=${SECRETS:-/run/secrets}
for name in control dagster; do
    # psql quotes the values: a password may have any character.
    psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres \
        --set=name="$name" --set=password="$(cat "$secrets/${name}_password")" <<'SQL'
CREATE ROLE :"name" LOGIN PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE CONNECT ON DATABASE :"name" FROM PUBLIC;
SQL
done
