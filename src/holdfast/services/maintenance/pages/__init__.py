"""Pages of the console: tables with their health and savings, one table, policies. Needs the extra `console`."""
