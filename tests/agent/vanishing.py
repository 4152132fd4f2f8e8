"""A trainer that hides a child (another session, no environment, nobody's child), and in that instant kills its
supervisor and its agent. Arguments: a folder, for a file of the child's pid."""

import os
import signal
import sys


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


supervisor = os.getppid()
agent = parent_of(supervisor)
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.write(writing, str(os.getpid()).encode())
    os.closerange(0, 64)
    os.execve("/bin/sleep", ["sleep", "600"], {})
pid = os.read(reading, 20).decode()
with open(os.path.join(sys.argv[1], pid), "w"):
    pass
if os.fork() == 0:  # this process ends with its supervisor, and a child of it does not
    os.kill(agent, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    os.kill(agent, signal.SIGKILL)
    os._exit(0)
signal.pause()
