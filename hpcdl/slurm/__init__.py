"""Slurm: its commands, what they print, and the adapter of the protocol in `hpcdl.batch.system`."""
