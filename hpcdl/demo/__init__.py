"""The demo: real trainers on GPUs of emulated speed, a paper's job set under two policies, and the comparison."""
