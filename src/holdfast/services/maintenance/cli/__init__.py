"""The commands of maintenance."""
