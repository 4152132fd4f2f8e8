"""Placement, which policies share: from "this job gets so many GPUs" to GPUs on nodes, and the reasons for it.

pool.py for policies that go by an order of jobs, shapes.py for those that lay out all at once, nodes.py and topology.py
for whole nodes.
"""
