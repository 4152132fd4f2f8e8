"""Slurm: its commands, what they print, and the adapter of the protocol in `hpcdl.batch`."""

from hpcdl.slurm.adapter import Slurm

__all__ = ["Slurm"]
