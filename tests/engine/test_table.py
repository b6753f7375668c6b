"""The Python side of the header says the same as the header."""

from __future__ import annotations

from enum import IntEnum

import pytest
from cffi import FFI

from colibri.engine import _colibri, table
from colibri.engine._colibri import ffi, lib
from colibri.engine.ffi import Snapshot
from colibri.engine.status import PrefillProgress, Status

ENUMS: dict[str, type[IntEnum]] = {
    "FAMILY": table.Family,
    "FORMAT": table.Format,
    "LAYOUT": table.Layout,
    "PRECISION": table.Precision,
    "KV": table.KvType,
    "ISA": table.Isa,
    "MIRROR": table.MirrorState,
}
STRUCTS = {
    "colibri_geometry": table.Geometry,
    "colibri_engine_options": table.EngineOptions,
    "colibri_sampling": table.Sampling,
    "colibri_tensor": table.Tensor,
    "colibri_engine_snapshot_t": Snapshot,
    "colibri_prefill_progress": PrefillProgress,
    "colibri_mirror_t": table.MirrorCounters,
}
# Set by the binding or by nobody.
NOT_MIRRORED = {"struct_size", "reserved", "mirror_paths", "n_mirrors", "loading"}


@pytest.mark.parametrize("prefix", ENUMS)
def test_an_enum_has_the_headers_names_and_numbers(prefix: str) -> None:
    in_header = {
        name.removeprefix(f"COLIBRI_{prefix}_"): getattr(lib, name)
        for name in dir(lib)
        if name.startswith(f"COLIBRI_{prefix}_")
    }
    assert {member.name: member.value for member in ENUMS[prefix]} == in_header


def test_the_status_codes_are_the_headers() -> None:
    assert lib.COLIBRI_OK == Status.OK
    errors = {
        name.removeprefix("COLIBRI_ERROR_"): getattr(lib, name)
        for name in dir(lib)
        if name.startswith("COLIBRI_ERROR_")
    }
    assert {member.name: member.value for member in Status if member} == errors


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_struct_has_the_headers_fields(struct: str) -> None:
    in_header = {name for name, _ in ffi.typeof(struct).fields} - NOT_MIRRORED
    assert set(STRUCTS[struct].__struct_fields__) == in_header


def test_the_engines_functions_do_not_leave_the_extension() -> None:
    outside = FFI()
    outside.cdef("int colibri_abi(void); void *PyInit__colibri(void);")
    library = outside.dlopen(_colibri.__file__)
    assert library.PyInit__colibri
    with pytest.raises(AttributeError, match="colibri_abi"):
        _ = library.colibri_abi
