"""Slurm: its commands, what they print, and its adapter (`hpcdl.batch.adapter.BatchAdapter`)."""
