"""The commands of graphs."""
