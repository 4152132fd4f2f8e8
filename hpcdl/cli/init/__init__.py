"""`hpcdl init`: a first training script and file of jobs, for a framework."""
