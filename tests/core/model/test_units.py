"""Names and numbers as people write them."""

from hpcdl.core.model.units import natural, runs


def test_names_with_numbers_are_sorted_as_people_do() -> None:
    names = ["n10", "n2", "n²", "10", "9a", "", "n2-b", "n٣"]
    assert sorted(names, key=natural) == ["", "9a", "10", "n2", "n2-b", "n10", "n²", "n٣"]


def test_runs_of_numbers() -> None:
    assert runs([]) == []
    assert runs([3, 4, 5, 7, 9, 10]) == [(3, 5), (7, 7), (9, 10)]
