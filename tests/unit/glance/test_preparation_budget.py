# SPDX-License-Identifier: Apache-2.0
"""The budget of an image's preparation grows with its uploaded bytes; excess is refused."""

from collections.abc import Iterator

import pytest

from acstor_common import errors
from acstor_common.image import artefacts
from acstor_common.model import geometry
from acstor_glance.prepare import preparation_budget
from tests.fakes import manual_clock

MIB, CHUNK_MAP = geometry.MIB, artefacts.Kind.CHUNK_MAP


def made(uploaded_bytes: float, ratio: int = 64, clock: manual_clock.ManualClock | None = None):
    return preparation_budget.PreparationBudget(
        "image 1", uploaded_bytes, ratio, clock=clock or manual_clock.ManualClock(1000.0)
    )


def test_decoded_bytes_are_limited_by_a_ratio_to_uploaded_bytes() -> None:
    spent = made(10 * MIB)
    spent.charge_decoded(640 * MIB, 1.0)
    with pytest.raises(errors.LimitExceeded, match=r"max_expansion_ratio \(64\)"):
        spent.charge_decoded(1, 0.0)


def test_small_image_has_a_minimum_budget() -> None:
    spent = made(1000)
    spent.charge_decoded(preparation_budget.SPARE_BYTES, 1.0)
    with pytest.raises(errors.LimitExceeded, match="its 1000 bytes decode to more than 268435456"):
        spent.charge_decoded(1, 0.0)


def test_slow_decoding_is_refused_for_any_size() -> None:
    spent = made(float("inf"))
    spent.charge_decoded(32 * MIB, 2.9)
    with pytest.raises(errors.LimitExceeded, match="33554432 bytes in 3"):
        spent.charge_decoded(0, 0.2)


def test_deadline_grows_with_the_uploaded_bytes() -> None:
    clock = manual_clock.ManualClock(1000.0)
    spent = made(100 * MIB, clock=clock)
    clock.now_s += 400.0
    spent.check_time()
    clock.now_s += 1.0
    for late in (spent.check_time, lambda: spent.charge_decoded(0, 0)):
        with pytest.raises(errors.LimitExceeded, match="not prepared in 400 s"):
            late()


def test_artefact_is_limited_to_the_size_of_its_image() -> None:
    spent = made(100 * MIB)
    spent.check_artefact(CHUNK_MAP, 100 * MIB)
    with pytest.raises(errors.LimitExceeded, match="its chunk_map would have 104857601 bytes"):
        spent.check_artefact(CHUNK_MAP, 100 * MIB + 1)
    spare_bytes = preparation_budget.CostLimits().spare_artefact_bytes
    made(1).check_artefact(CHUNK_MAP, spare_bytes)
    with pytest.raises(errors.LimitExceeded, match="its 1 bytes do not allow that"):
        made(1).check_artefact(CHUNK_MAP, spare_bytes + 1)


def test_trickling_location_times_out() -> None:
    clock = manual_clock.ManualClock(1000.0)
    spent = made(2 << 40, clock=clock)
    received = 0

    def dripping() -> Iterator[bytes]:
        while True:
            clock.now_s += 10.0
            yield b"x" * 1000

    with pytest.raises(errors.LimitExceeded, match="not prepared in 300 s"):
        for piece in spent.enforce_deadline(dripping()):
            received += len(piece)
    assert received == 30_000


def test_steady_location_is_read_to_its_end() -> None:
    clock = manual_clock.ManualClock(1000.0)
    spent = made(600 * MIB, clock=clock)

    def sending() -> Iterator[bytes]:
        for _ in range(600):
            clock.now_s += 1.0
            yield bytes(MIB)

    assert sum(map(len, spent.enforce_deadline(sending()))) == 600 * MIB
