"""Console pages of exports: mappings and snapshots."""
