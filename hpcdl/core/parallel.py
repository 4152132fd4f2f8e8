"""Arrays of which only so many members may hold GPUs at a time: which of those that wait have a turn."""

from bisect import bisect_left, insort

from hpcdl.core.model import Job, World


class _Capped:
    """One such array. `using`: members that hold GPUs or were given some; `waiting`: others that could be placed."""

    __slots__ = ("admitted", "most", "size", "using", "waiting")

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self.using: set[int] = set()
        self.waiting: list[int] = []  # ascending
        self.admitted: set[int] = set()

    def settle(self) -> set[int]:
        """Decides anew who has a turn; those for whom that changed."""
        before = self.admitted
        self.admitted = set(self.waiting[: max(0, self.most - len(self.using))])
        return before ^ self.admitted


class Turns:
    """Of each capped array the members that wait have their turn in order, as far as there is room.

    Members that hold GPUs, or that the last plan gave some, count; those that are held by their user, pause or wait for
    other jobs neither count nor keep others from their turn. Only a cache of what follows from the world.
    """

    def __init__(self) -> None:
        self._arrays: dict[int, _Capped] = {}
        self._array_of: dict[int, int] = {}
        self._changed: set[int] = set()

    def note(self, world: World, job: Job | None, number: int, blocked: str) -> None:
        """A job may stand otherwise than before; None: it is finished. `blocked`: why it cannot be placed anyway."""
        spec = None if job is None else job.spec
        if spec is None or not spec.array_most:
            self._forget(number)
            return
        assert job is not None
        array = self._arrays.get(spec.array)
        if array is None:
            array = self._arrays[spec.array] = _Capped(spec.array_most)
        if number not in self._array_of:
            self._array_of[number] = spec.array
            array.size += 1
        target = world.targets.get(number)
        uses = job.running is not None or (target is not None and target.placement is not None)
        waits = not uses and not blocked
        if uses != (number in array.using):
            (array.using.add if uses else array.using.discard)(number)
            self._changed.add(spec.array)
        place = bisect_left(array.waiting, number)
        waited = place < len(array.waiting) and array.waiting[place] == number
        if waits != waited:
            if waits:
                insort(array.waiting, number)
            else:
                del array.waiting[place]
            self._changed.add(spec.array)

    def _forget(self, number: int) -> None:
        which = self._array_of.pop(number, None)
        if which is None:
            return
        array = self._arrays[which]
        array.size -= 1
        array.using.discard(number)
        place = bisect_left(array.waiting, number)
        if place < len(array.waiting) and array.waiting[place] == number:
            del array.waiting[place]
        self._changed.add(which)

    def settle(self) -> set[int]:
        """The jobs that have their turn now and had not before, or the other way round."""
        found: set[int] = set()
        for which in self._changed:
            array = self._arrays[which]
            found |= array.settle()
            if not array.size:
                del self._arrays[which]
        self._changed.clear()
        return found

    def wants(self, job: Job) -> str:
        """Why it has to wait for its turn; "" where it need not."""
        spec = job.spec
        array = self._arrays.get(spec.array) if spec.array_most else None
        if array is None or job.id in array.using or job.id in array.admitted:
            return ""
        return f"at most {spec.array_most} of array {spec.array} at a time"
