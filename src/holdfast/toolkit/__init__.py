"""What the commands and client namespaces of every service are made of."""
