"""What runs on a node: the agent, and one supervisor for every attempt (incarnation) on it. Two programs, in one
package because they share a run folder, its files and the side channel (docs/protocols.md).

The agent: `run` (start and lock), `agent` (its parts), `daemon_link` (the connection to the daemon), `report_log` (its
write-ahead log), `part` (this node's part of an attempt), `start_request` (what a supervisor is to start), `grant` and
`gpus`, `run_folder`, `supervisor_link` (the connection to a supervisor), `orphans`, `shell` (commands beside trainers),
`departure` (a batch job's end), `folder`.

The supervisor is in `supervisor/`, and needs the standard library only; the sources of GPUs are in `gpu/`.

Nothing is imported here: a supervisor must start fast.
"""
