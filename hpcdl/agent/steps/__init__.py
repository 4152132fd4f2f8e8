"""Batch scripts inside jobs of hpcdl, and the commands by which they start tasks: srun, jsrun and scontrol.

`script` runs a batch script on the first node of its attempt with the variables of its batch system, and serves its
steps on the others; `srun` and `jsrun` read those command lines; `step` starts the tasks of one, on all of its nodes;
`layout` says which task runs where with which GPUs; `batch_commands` answers for commands that name the job's id.
`__main__` is run by the stubs, by path. Nothing that is not installed with hpcdl's core: it loads for each step.
"""
