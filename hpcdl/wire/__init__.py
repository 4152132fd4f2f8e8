"""What crosses a border: messages and their limits, the access file, TLS, and files for the owner only."""
