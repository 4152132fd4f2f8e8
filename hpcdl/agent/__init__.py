"""What runs on a node: the agent, and one supervisor for every incarnation on it.

Nothing is imported here: a supervisor must start fast, and with the standard library alone.
"""
