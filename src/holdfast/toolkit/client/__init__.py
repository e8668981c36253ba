"""The toolkit of the HTTP client: requests, problems, records, progress."""
