"""The toolkit of commands: sessions, shared options, output, waiting."""
