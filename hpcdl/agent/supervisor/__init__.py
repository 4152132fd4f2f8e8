"""The supervisor of one attempt on one node: a program of its own, below which the trainer runs.

It outlives the agent, and the trainer never outlives it. `supervisor` is its loop; `launch`, `ranks` and `processes`
are the trainer's processes, `termination`, `drill` and `memberships` what is done to them; `side_channel`, `packets`
and `clients` are who speaks with it; `output` and `progress_bars` read what the trainer prints; `start_file`,
`run_folder`, `process_file` and `claim` are its files; `exit_cause` says how it ended. Nothing is imported here: it
must start fast.
"""
