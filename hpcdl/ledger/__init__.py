"""The ledger on disk: SQLite with one writer, and the lease beside it."""
