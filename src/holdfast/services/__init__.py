"""One folder per thing the system can do. None imports another; what is common to two of them belongs further down."""
