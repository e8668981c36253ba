"""Maintenance of Iceberg tables: fenced jobs that rewrite, expire and clean up under one lock per table."""

from holdfast.services.maintenance.service import SERVICE as SERVICE
