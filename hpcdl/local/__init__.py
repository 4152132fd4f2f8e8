"""One machine without a batch system: the daemon starts its own agent."""
