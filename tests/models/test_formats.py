"""Byte counts and formats of published tensors: derived, never guessed, as the engine has them."""

from __future__ import annotations

import pytest

from colibri.engine import cvalues, packing
from colibri.engine.table import Format
from colibri.models import formats
from colibri.models.formats import GROUP_SIZES, Quantized, candidates, container_group, resolve

SHAPES = [(1, 1), (32, 64), (33, 65), (576, 1536), (128, 100), (5, 4096), (2048, 6144)]
PAIRS = [(fmt, 0) for fmt in Format if fmt != Format.I4_GROUP] + [
    (Format.I4_GROUP, group) for group in GROUP_SIZES
]


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
@pytest.mark.parametrize(("fmt", "group"), PAIRS)
def test_byte_counts_are_those_of_the_engine(fmt: Format, group: int, rows: int, cols: int) -> None:
    if fmt in formats.BLOCK_BYTES and cols % 32:
        cols = 32 * formats.ceil_div(cols, 32)
    lib = cvalues.lib
    assert formats.plain_bytes(fmt, rows, cols) == lib.colibri_weight_plain_bytes(fmt, rows, cols)
    scales = 4 * formats.scale_count(fmt, group, rows, cols)
    assert scales == lib.colibri_weight_scale_bytes(fmt, group, rows, cols)
    packed = formats.packed_bytes(fmt, group, rows, cols)
    assert packed == packing.weight_packed_bytes(fmt, group, rows, cols)


def pair(fmt: Format, group: int, rows: int, cols: int) -> Quantized:
    return Quantized(
        "w",
        rows,
        cols,
        formats.plain_bytes(fmt, rows, cols),
        formats.scale_count(fmt, group, rows, cols),
    )


GLM_SHAPES = [
    (2048, 6144), (6144, 2048), (16384, 2048), (576, 6144), (28672, 512), (6144, 16384),
    (12288, 6144), (6144, 12288), (154880, 6144), (128, 6144), (4096, 2048),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "cols"), GLM_SHAPES)
@pytest.mark.parametrize("group", GROUP_SIZES)
def test_the_shapes_of_glm_52_have_one_reading_in_int4_groups(
    group: int, rows: int, cols: int
) -> None:
    found = candidates(pair(Format.I4_GROUP, group, rows, cols))
    assert not found.formats
    assert found.groups == {group}


@pytest.mark.parametrize(("rows", "cols"), GLM_SHAPES)
@pytest.mark.parametrize("fmt", [Format.I8_ROW, Format.I4_ROW])
def test_the_shapes_of_glm_52_have_one_reading_per_row(fmt: Format, rows: int, cols: int) -> None:
    w = pair(fmt, 0, rows, cols)
    assert resolve(w, candidates(w), None, 0) == fmt


def test_an_unstamped_collision_of_int8_and_fp8_is_int8_and_a_stamp_decides_otherwise() -> None:
    w = pair(Format.I8_ROW, 0, 6144, 16384)
    found = candidates(w)
    assert found.formats == {Format.I8_ROW, Format.FP8_BLOCK}
    assert resolve(w, found, None, 0) == Format.I8_ROW
    assert resolve(w, found, Format.FP8_BLOCK, 0) == Format.FP8_BLOCK


def test_one_group_per_row_is_int4_per_row() -> None:
    w = pair(Format.I4_GROUP, 64, 8, 64)
    assert candidates(w).formats == {Format.I4_ROW}


def test_the_group_size_of_a_container_is_the_one_that_fits_every_tensor() -> None:
    narrow, wide = pair(Format.I4_GROUP, 64, 8, 128), pair(Format.I4_GROUP, 64, 8, 640)
    assert candidates(narrow).groups == {64, 96}
    both = [(narrow, candidates(narrow)), (wide, candidates(wide))]
    assert container_group(both) == (64, frozenset({64}))


def test_among_fitting_group_sizes_the_one_without_a_short_tail_wins() -> None:
    w = pair(Format.I4_GROUP, 64, 8, 128)
    assert container_group([(w, candidates(w))])[0] == 64


def test_group_sizes_that_nothing_decides_stay_open() -> None:
    w = pair(Format.I4_GROUP, 64, 8, 100)
    group, possible = container_group([(w, candidates(w))])
    assert (group, possible) == (0, {64, 96})
    assert resolve(w, candidates(w), None, group) is None


def test_counts_that_fit_nothing_have_no_candidates() -> None:
    assert not candidates(Quantized("w", 8, 64, 8 * 64, 9))
    assert not candidates(Quantized("w", 8, 64, 8 * 33, 8))
