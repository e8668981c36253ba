"""The embedded Iceberg catalog: the schema and the two tables that PyIceberg's SQL catalog uses.

PyIceberg creates them when it first opens a catalog, but the roles of workers and of the API may not create anything. A catalog
that exists already is kept. A downgrade drops it only if it is empty: it has the only pointers to the metadata of tables.
"""

from alembic import op

revision = "0070"
down_revision = "0060"
branch_labels = None
depends_on = None

UPGRADE = """
CREATE SCHEMA IF NOT EXISTS holdfast_iceberg;
CREATE TABLE IF NOT EXISTS holdfast_iceberg.iceberg_tables (
    catalog_name               varchar(255) NOT NULL,
    table_namespace            varchar(255) NOT NULL,
    table_name                 varchar(255) NOT NULL,
    metadata_location          varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type               varchar(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE IF NOT EXISTS holdfast_iceberg.iceberg_namespace_properties (
    catalog_name   varchar(255) NOT NULL,
    namespace      varchar(255) NOT NULL,
    property_key   varchar(255) NOT NULL,
    property_value varchar(1000) NOT NULL,
    PRIMARY KEY (catalog_name, namespace, property_key)
);
"""

DOWNGRADE = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM holdfast_iceberg.iceberg_tables)
        AND NOT EXISTS (SELECT FROM holdfast_iceberg.iceberg_namespace_properties) THEN
        DROP SCHEMA holdfast_iceberg CASCADE;
    END IF;
END $$;
"""


def upgrade() -> None:
    op.execute(UPGRADE)


def downgrade() -> None:
    op.execute(DOWNGRADE)
