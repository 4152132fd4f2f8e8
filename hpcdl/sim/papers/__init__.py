"""The tables of the papers: ours beside theirs."""
