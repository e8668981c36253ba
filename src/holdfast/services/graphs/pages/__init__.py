"""Console pages of graphs: instances, one instance, and Cypher."""
