"""The converter's arithmetic against definitions written down once more, and case R134."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.engine.table import Format
from colibri.errors import ModelError
from colibri.models import quantize
from tests.oracle import published
from tests.oracle.checkpoint import Stored, dequantize, fp8_table

SHAPES = [(1, 1), (3, 7), (32, 64), (33, 65), (40, 160), (130, 129), (129, 300)]


def random(shape: tuple[int, ...], seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.standard_normal((shape[0], 1)) * 4)
    return (rng.standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("group", [16, 48, 64, 128])
def test_int4_codes_and_scales_are_those_of_the_published_rule(
    shape: tuple[int, int], group: int
) -> None:
    values = random(shape)
    codes, scales = quantize.as_int4(values, group, "x")
    expected_codes, expected_scales = published.quantize_i4(values, group)
    assert np.array_equal(codes.reshape(-1), expected_codes)
    assert np.array_equal(scales.reshape(-1), expected_scales)


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_codes_and_scales_are_those_of_the_published_rule(shape: tuple[int, int]) -> None:
    values = random(shape)
    codes, scales = quantize.as_int8(values, "x")
    expected_codes, expected_scales = published.quantize_i8(values)
    assert np.array_equal(codes.view(np.uint8).reshape(-1), expected_codes)
    assert np.array_equal(scales, expected_scales)


def test_rows_of_zeros_have_the_smallest_scale_and_ties_go_to_even() -> None:
    values = np.zeros((2, 4), np.float32)
    values[1] = [127, 0.5, 1.5, -2.5]
    codes, scales = quantize.as_int8(values, "x")
    assert scales.tolist() == [np.float32(1e-8), 1.0]
    assert codes.tolist() == [[0, 0, 0, 0], [127, 0, 2, -2]]
    values[1] = [7, 0.5, 1.5, -2.5]
    nibbles, scales = quantize.as_int4(values, 64, "x")
    assert scales.tolist() == [[np.float32(1e-8)], [1.0]]
    assert nibbles.tolist() == [[0x88, 0x88], [0x8F, 0x6A]]


def test_int4_never_leaves_its_codes_whatever_the_rounding_of_the_scale() -> None:
    rng = np.random.default_rng(11)
    bits = rng.integers(0x20000000, 0x7F000000, (4096, 64), dtype=np.uint32)
    for values in (bits.view(np.float32), np.nextafter(np.float32(7), 8) * np.ones((1, 64), "f4")):
        nibbles, scales = quantize.as_int4(values, 64, "x")
        unpacked = np.stack([nibbles & 15, nibbles >> 4], -1).reshape(values.shape).astype(int) - 8
        assert np.abs(unpacked).max() == 7
        assert np.isfinite(scales).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_fp8_blocks_are_widened_exactly_also_where_the_last_block_is_ragged(
    shape: tuple[int, int],
) -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 256, shape).astype(np.uint8)
    grid = (-(-shape[0] // 128), -(-shape[1] // 128))
    scales = rng.standard_normal(grid).astype(np.float32)
    scales[0, 0] = 0
    stored = Stored("x", "fp8_block", 0, *shape, codes.reshape(-1), scales.reshape(-1))
    found = quantize.widen(
        Format.FP8_BLOCK, *shape, codes.reshape(-1), scales.reshape(-1).view(np.uint8)
    )
    assert np.array_equal(found, dequantize(stored), equal_nan=True)


def test_every_fp8_code_has_its_value_and_two_are_nan() -> None:
    codes = np.arange(256, dtype=np.uint8)
    found = quantize.widen(Format.FP8_BLOCK, 1, 256, codes, np.ones(2, np.float32).view(np.uint8))
    assert np.array_equal(found[0], fp8_table(), equal_nan=True)
    assert np.flatnonzero(np.isnan(found[0])).tolist() == [0x7F, 0xFF]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 63, 64, 70])
def test_a_value_that_is_not_finite_is_refused_by_tensor_and_row(bad: float, column: int) -> None:
    values = random((5, 71))
    values[3, column] = bad
    for call in (
        lambda: quantize.as_int4(values, 64, "some.weight", 100),
        lambda: quantize.as_int8(values, "some.weight", 100),
    ):
        with pytest.raises(ModelError, match=r"some\.weight.*row 103 .*not finite"):
            call()


# ---- R134 ----------------------------------------------------------------------------------------


def test_R134_with_an_outlier_column_group_scales_halve_the_error_of_row_scales() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((256, 1024)).astype(np.float32)
    values[:, 500] *= 40  # one input channel, as trained models have them
    x = rng.standard_normal((64, 1024)).astype(np.float32)
    expected = x @ values.T
    errors = {}
    for group in (64, 128, 1024):
        codes, scales = published.quantize_i4(values, group)
        fmt = "i4_row" if group == 1024 else "i4_group"
        found = dequantize(Stored("x", fmt, group, *values.shape, codes, scales))
        errors[group] = float(np.abs(x @ found.T - expected).mean() / expected.std())
    assert errors[64] < errors[128] < errors[1024]
    assert errors[64] < 0.5 * errors[1024], errors
