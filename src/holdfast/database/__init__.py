"""Postgres: connections, the embedded server, LISTEN and the migrations."""
