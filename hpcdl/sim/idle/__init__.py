"""Nodes that idle, described as in section 2.1 of the BFTrainer paper: table 1, figures 1 and 6. docs/record.md."""

from hpcdl.sim.idle.table import IdleTable, table_of

__all__ = ["IdleTable", "table_of"]
