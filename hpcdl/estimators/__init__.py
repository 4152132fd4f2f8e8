"""Fits of what jobs show: how they scale (online), how fast GENIE's model says they are, and when they will be done.

Pure functions of observations; what is learnt is kept by the daemon (daemon/learner.py), never here.
"""
