"""LSF's command lines: one dash, long names, and values that may stick to the option (`-W10`, `-Rselect[CN]`)."""

from collections.abc import Iterable, Sequence


class Refused(Exception):
    """What a command says on stderr before it ends with 255."""


class Options:
    """Options that were given, by name without the dash, and the arguments after them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.flags: set[str] = set()
        self.rest: list[str] = []

    def get(self, name: str, default: str = "") -> str:
        return self.values.get(name, default)

    def has(self, name: str) -> bool:
        return name in self.flags or name in self.values


def parse(
    argv: Sequence[str],
    flags: Iterable[str],
    valued: Iterable[str],
    *,
    command: str,
    mixed: bool = True,
    without: Iterable[str] = (),
) -> Options:
    """`mixed`: options may come after arguments; else the first argument ends them, as in bsub. `without`: those that
    this LSF does not know.
    """
    known, takes = set(flags), sorted(valued, key=len, reverse=True)
    lacks = set(without)
    found = Options()
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            found.rest.append(word)
            if not mixed:
                found.rest.extend(rest)
                break
            continue
        name = word[1:]
        if name in lacks:
            raise Refused(f"{command}: illegal option -- {name}")
        if name in known:
            found.flags.add(name)
        elif name in takes:
            if not rest:
                raise Refused(f"{command}: option requires an argument -- {name}")
            found.values[name] = rest.pop(0)
        elif stuck := next((each for each in takes if len(each) == 1 and name.startswith(each)), ""):
            found.values[stuck] = name[len(stuck) :]
        else:
            raise Refused(f"{command}: illegal option -- {name}")
    return found
