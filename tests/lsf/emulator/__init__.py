"""An emulator of LSF for tests: its commands over one state file, and a scheduler that really runs jobs.

Formats, replies and signals follow real output in public sources where there is any (see recordings/SOURCES.md), else
IBM's manuals of Spectrum LSF 10.1. All hosts are this machine. Standard library only, and no dataclasses: each command
is a process of its own, and starts in a few hundredths of a second.
"""
