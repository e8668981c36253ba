"""The table cache and the health score: what is known of the tables without asking a catalog."""
