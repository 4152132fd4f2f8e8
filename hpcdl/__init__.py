"""hpcdl shares the GPUs of an HPC allocation well among deep-learning jobs.

Nothing is imported here: the command line and the trainers start fast. What is meant for a training script is in
`hpcdl.trainer`.
"""

__version__ = "0.1.0.dev0"
