"""What runs on a node: the agent, and one supervisor for every incarnation on it. Two programs, in one package
because they share a run folder, its files and the side channel (docs/protocols.md).

The agent: `run` (start and lock), `agent` (its parts), `connection` (to the daemon), `reports` (write-ahead log),
`incarnations` (one Part for each run folder), `orders`, `environment` and `start` (from a request to a supervisor),
`supervisorlink` (side channel), `translate` (records to events), `adopt` (what an earlier agent left), `gpus`,
`grants`, `folder`.

The supervisor, standard library only: `supervisor` (its loop), `runfolder`, `launch` (the first process), `ranks`,
`clients`, `sidechannel` and `agentlink` (who is connected), `escalation` (what is due when) and `closing` (doing it),
`claim`, `output`, `outofmemory`, `clock`, `wakeup`.

Both: `startfile` (start.json), `records` (record.jsonl), `packets` (side channel), `processes` (/proc).

Nothing is imported here: a supervisor must start fast.
"""
