"""What a policy may be asked to aim for; each policy says which of these it heeds."""

OBJECTIVES = ("jct", "makespan", "throughput", "efficiency", "priority", "deadline", "fair")
