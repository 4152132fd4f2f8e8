"""LSF, by its commands."""
