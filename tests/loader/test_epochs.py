"""The leader epochs of the batches that were read do not depend on how the range was split."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.loader.epochs import NO_EPOCHS, STARTS_MAX, ReadEpochs

BATCHES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 4)), max_size=STARTS_MAX).map(
    lambda rows: [(sum(rise for rise, _, _ in rows[: at + 1]), gap, width) for at, (_, gap, width) in enumerate(rows)]
)
"""Batches as (epoch, gap before the batch, number of offsets). Epochs never decrease."""


def read(batches: list[tuple[int, int, int]], position: int) -> tuple[ReadEpochs, int]:
    found = NO_EPOCHS
    for epoch, gap, width in batches:
        end = position + gap + width
        found = found.followed_by(ReadEpochs(((epoch, position),), end))
        position = end
    return found, position


@given(BATCHES, st.integers(0, STARTS_MAX))
def test_epochs_of_pieces_add_up_to_those_of_the_range(batches: list[tuple[int, int, int]], split_at: int) -> None:
    all_epochs, _ = read(batches, 5)
    first, position = read(batches[:split_at], 5)
    later, _ = read(batches[split_at:], position)
    assert first.followed_by(later) == all_epochs
    assert [epoch for epoch, _ in all_epochs.starts] == sorted({epoch for epoch, _, _ in batches})


def test_an_epoch_begins_where_the_batches_before_it_ended() -> None:
    first = ReadEpochs(((3, 0),), 60)
    assert first.followed_by(ReadEpochs(((4, 100), (6, 120)), 130)) == ReadEpochs(((3, 0), (4, 60), (6, 120)), 130)
    assert first.followed_by(ReadEpochs(((3, 100), (6, 120)), 130)) == ReadEpochs(((3, 0), (6, 120)), 130)
    assert first.followed_by(NO_EPOCHS) == first
    assert NO_EPOCHS.followed_by(first) == first


def test_newer_epochs_come_first_each_with_its_end() -> None:
    assert ReadEpochs(((3, 0), (4, 60), (6, 120)), 130).newest_first() == [(6, 130), (4, 120), (3, 60)]
    assert NO_EPOCHS.newest_first() == []


def test_truncation_drops_epochs_above_an_offset() -> None:
    read_epochs = ReadEpochs(((3, 10), (4, 60)), 100)
    assert read_epochs.below(200) == read_epochs
    assert read_epochs.below(61) == ReadEpochs(((3, 10), (4, 60)), 61)
    assert read_epochs.below(60) == ReadEpochs(((3, 10),), 60)
    assert read_epochs.below(10) == NO_EPOCHS


def test_number_of_stored_epochs_is_limited() -> None:
    found = NO_EPOCHS
    for epoch in range(100):
        found = found.followed_by(ReadEpochs(((epoch, epoch),), epoch + 1))
    assert found.starts == tuple((epoch, epoch) for epoch in range(100 - STARTS_MAX, 100))
