"""A contender in its own process keeps what it made, ends when nobody can call it, and is missed when it is gone."""

import gc
import multiprocessing
import os
from collections.abc import Callable

import pytest
import torch

from benchmarks.apart import apart
from lightning_app.common.errors import UserError


def counter(start: int) -> Callable[[], float]:
    """Made once: counts its turns."""
    turns = iter(range(start, 100))
    return lambda: float(next(turns))


def threads() -> Callable[[], float]:
    return lambda: float(torch.get_num_threads())


def sleeper() -> Callable[[], None]:
    return lambda: None


def dying() -> Callable[[], float]:
    return lambda: os._exit(7)


def test_it_is_made_once_and_called_at_every_turn():
    turn = apart(counter, 5)
    assert [turn(), turn(), turn()] == [5, 6, 7]


def test_what_returns_nothing_is_timed():
    assert 0 < apart(sleeper)() < 1


def test_it_has_our_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert apart(threads)() == 2
    finally:
        torch.set_num_threads(before)


def mistaken() -> Callable[[], float]:
    raise UserError("no data there")


def test_a_users_mistake_is_its_sentence_here_too():
    with pytest.raises(UserError, match="no data there"):
        apart(mistaken)()


def test_one_that_ends_is_named():
    with pytest.raises(RuntimeError, match=r"dying\(\) ended with code 7"):
        apart(dying)()


def test_one_that_nobody_can_call_again_ends():
    before = set(multiprocessing.active_children())
    turn = apart(sleeper)
    turn()
    (process,) = set(multiprocessing.active_children()) - before
    del turn
    gc.collect()
    process.join(20)
    assert process.exitcode == 0
