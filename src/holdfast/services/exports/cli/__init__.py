"""The commands of exports."""
