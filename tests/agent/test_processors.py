"""Which processors come with which GPUs."""

from hpcdl.agent.processors import choose, usable

FOUR = {f"G{number}": tuple(range(8 * (number // 2), 8 * (number // 2) + 8)) for number in range(4)}
"""Two GPUs on each of two sockets of 8 processors."""

ALL = tuple(range(16))


def parts(near: dict[str, tuple[int, ...]], allowed: tuple[int, ...] = ALL) -> dict[str, tuple[int, ...]]:
    return {gpu: choose([gpu], near, allowed, [], None) for gpu in near}


def test_each_gpu_brings_an_equal_part_of_its_own_socket() -> None:
    assert parts(FOUR) == {"G0": (0, 1, 2, 3), "G1": (4, 5, 6, 7), "G2": (8, 9, 10, 11), "G3": (12, 13, 14, 15)}
    assert choose(["G1", "G2"], FOUR, ALL, [], None) == tuple(range(4, 12))


def test_jobs_that_share_a_node_share_no_processor() -> None:
    unknown: dict[str, tuple[int, ...]] = dict.fromkeys(FOUR, ())
    for sockets in (FOUR, unknown):
        found = [cpu for cpus in parts(sockets).values() for cpu in cpus]
        assert sorted(found) == list(ALL)


def test_those_of_one_core_stay_together() -> None:
    siblings = (0, 8, 1, 9, 2, 10, 3, 11)  # as `usable` has them, where 0 and 8 are one core
    found = parts({"G0": (), "G1": ()}, siblings)
    assert found == {"G0": (0, 1, 8, 9), "G1": (2, 3, 10, 11)}


def test_nothing_is_bound_where_processors_are_few() -> None:
    assert set(parts(FOUR, (0, 1, 2, 3, 4, 5, 6)).values()) == {()}
    assert choose(["G0"], FOUR, (0, 1), [], 1) == (0,), "but what asked for it"


def test_a_job_may_ask_for_fewer_or_more() -> None:
    assert choose(["G1"], FOUR, ALL, [], 2) == (4, 5)
    assert choose(["G1"], FOUR, ALL, ["G3"], 6) == (4, 5, 6, 7, 12, 13), "those of idle GPUs come first"
    assert choose(["G1"], FOUR, ALL, [], 16) == (), "all of them: it is not bound"


def test_what_this_process_may_use() -> None:
    assert usable()
    assert len(set(usable())) == len(usable())
