"""The seeds of a bank as a user writes them. Here, without torch, because commands that start fast read them too."""

import re
from collections.abc import Iterable

from lightning_app.common.errors import UserError

ALONE = "net"  # name of the one member where a configuration has one `model.net` and one seed


def parse_seeds(seeds: int | list[int] | str) -> tuple[int, ...]:
    """The seeds of a bank: a count (13 is 0 to 12), a list, or ranges as text.

    >>> parse_seeds(3), parse_seeds([7]), parse_seeds("0-2,5")
    ((0, 1, 2), (7,), (0, 1, 2, 5))
    """
    if isinstance(seeds, int):
        if seeds < 1:
            raise UserError(
                f"seeds as a number says how many seeds, at least 1, got {seeds}. For seed 0 alone write '0-0'."
            )
        chosen = list(range(seeds))
    elif isinstance(seeds, str):
        if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", seeds):
            raise UserError(f"expected seeds as numbers and ranges like '0-6,9', got '{seeds}'.")
        ends = [tuple(map(int, part.split("-"))) for part in seeds.split(",")]
        if any(end[-1] < end[0] for end in ends):
            raise UserError(f"expected a range of seeds from low to high, like '0-6', got '{seeds}'.")
        if max(end[-1] - end[0] for end in ends) >= 10_000:
            raise UserError(f"a range of seeds must have at most 10,000 seeds, got '{seeds}'.")
        chosen = [seed for end in ends for seed in range(end[0], end[-1] + 1)]
    else:
        chosen = list(seeds)
    if not chosen or len(set(chosen)) < len(chosen) or not 0 <= min(chosen) <= max(chosen) < 2**63:
        raise UserError(f"seeds must be one or more different integers from 0 to 2^63 - 1, got {seeds!r}.")
    return tuple(chosen)


def spell_seeds(seeds: Iterable[int]) -> str:
    """Text that `parse_seeds` reads back, on a command line too: there a bare 7 would be a count, seeds 0 to 6.

    >>> spell_seeds([0, 1, 2, 5]), spell_seeds([7])
    ('0-2,5', '7-7')
    """
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in consecutive(seeds))
    return f"{text}-{text}" if text.isdigit() else text


def spell_seed(seed: int, seeds: Iterable[int]) -> str:
    """A seed among others in names and keys, so that text sorts like numbers.

    >>> spell_seed(3, range(13)), spell_seed(3, [3, 100])
    ('03', '003')
    """
    return f"{seed:0{max(2, len(str(max(seeds))))}d}"


def consecutive(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of the numbers that follow each other, ascending.

    >>> consecutive([0, 3, 4, 5, 9])
    [(0, 0), (3, 5), (9, 9)]
    """
    rows: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if rows and rows[-1][1] == number - 1:
            rows[-1] = (rows[-1][0], number)
        else:
            rows.append((number, number))
    return rows
