"""Print the Secrets of a new installation with random passwords, as YAML for kubectl.

    python deploy/scripts/make_secrets.py --host db.example.com --owner-url postgresql://… | kubectl apply -n holdfast -f -

Nothing is written to disk. With `--in-cluster` the addresses are those of the overlay `demo`. Run it once: a second run makes
other passwords, which count after the Job `migrate` has run again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from urllib.parse import quote

ROLES = ("api", "worker", "autoscaler", "reader")


def documents(host: str, database: str, owner_url: str | None, options: str) -> list[dict[str, object]]:
    """The Secrets that the manifests refer to."""
    passwords = {role: secrets.token_urlsafe(24) for role in ROLES}
    owner = secrets.token_urlsafe(24)
    urls = {role: f"postgresql://holdfast_{role}:{quote(passwords[role])}@{host}/{database}{options}" for role in ROLES}
    owner_secret = (
        {"url": owner_url}
        if owner_url
        else {"url": f"postgresql://holdfast_owner:{quote(owner)}@{host}/{database}{options}", "password": owner}
    )
    return [
        _secret("holdfast-db-owner", owner_secret),
        _secret("holdfast-db-passwords", passwords),
        _secret("control-plane-db", {"url": urls["autoscaler"], "api-url": urls["api"], "worker-url": urls["worker"]}),
    ]


def _secret(name: str, data: dict[str, str]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "Opaque", "stringData": data}


def main() -> None:
    """Read the arguments and print."""
    import yaml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="host[:port] of Postgres")
    parser.add_argument("--database", default="holdfast")
    parser.add_argument("--owner-url", help="address with the role that owns the schema")
    parser.add_argument("--options", default="?sslmode=require", help="what follows the database in the addresses")
    parser.add_argument("--in-cluster", action="store_true", help="for the Postgres of the overlay demo")
    given = parser.parse_args()
    if given.in_cluster:
        given.host, given.options = "postgres.holdfast.svc:5432", "?sslmode=disable"
    elif not (given.host and given.owner_url):
        parser.error("give --host and --owner-url, or --in-cluster")
    yaml.safe_dump_all(documents(given.host, given.database, given.owner_url, given.options), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
