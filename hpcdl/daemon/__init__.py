"""The daemon: the shell round the Controller with a real clock, a ledger on disk and real agents."""
