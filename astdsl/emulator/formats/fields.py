"""Changes of single fields of a tensor map's 128 bytes, as `tensormap.replace` makes them.

Invariant: a map may be wrong between two changes, so nothing is checked here but the field itself;
reading it whole (`TensorMap.from_bytes`) checks the rest.  128 bytes of zeros are a map of which
no field is set yet, as Triton starts the descriptors that a kernel makes (`zero_fill_tma`).
Source: PTX ISA 9.7.9.28, table 33.
"""

from __future__ import annotations

from astdsl.emulator.formats.errors import FormatError
from astdsl.emulator.formats.swizzle import Swizzle
from astdsl.emulator.formats.tensormap import LAYOUT, MAGIC, MAP_BYTES, TensorDataType

__all__ = ["FIELDS", "ORDINAL_FIELDS", "replaced"]

_T = TensorDataType
# The instruction's codes of element types are not the driver's.
_ELEMENT_TYPES = (
    _T.U8, _T.U16, _T.U32, _T.S32, _T.U64, _T.S64, _T.F16, _T.F32, _T.F32_FTZ, _T.F64, _T.BF16,
    _T.TF32, _T.TF32_FTZ, _T.U4_ALIGN8B, _T.U4_ALIGN16B, _T.U6_ALIGN16B,
)  # fmt: skip
_SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128, Swizzle.B96)
_ATOMS = (
    Swizzle.B128, Swizzle.B128_ATOM_32B, Swizzle.B128_ATOM_32B_FLIP_8B, Swizzle.B128_ATOM_64B,
)  # fmt: skip
# Where each field lies among the unpacked ones, and how many of it there are.
_DTYPE, _RANK, _INTERLEAVE, _SWIZZLE, _FILL, _ADDRESS = 1, 2, 3, 4, 5, 7
_PLACES = {"global_dim": (8, 5), "global_stride": (13, 4), "box_dim": (17, 5),
           "element_stride": (22, 5)}  # fmt: skip
ORDINAL_FIELDS = frozenset(_PLACES)
_SINGLE = ("global_address", "rank", "elemtype", "interleave_layout", "swizzle_mode",
           "swizzle_atomicity", "fill_mode")  # fmt: skip
FIELDS = (*_SINGLE, *_PLACES)
_BLANK = bytes(MAP_BYTES)


def replaced(raw: bytes, field: str, ordinal: int, value: int) -> bytes:
    """Return 128 bytes with one field changed; raises `FormatError`."""
    if raw == _BLANK:
        raw = MAGIC + raw[len(MAGIC) :]
    if len(raw) != MAP_BYTES or raw[: len(MAGIC)] != MAGIC:
        raise FormatError("these 128 bytes are not a tensor map")
    fields = list(LAYOUT.unpack_from(raw))
    if field in _PLACES:
        first, count = _PLACES[field]
        if not 0 <= ordinal < count:
            raise FormatError(f"there is no {field} {ordinal}")
        fields[first + ordinal] = value
    else:
        place, code = _single(field, value, fields)
        fields[place] = code
    return LAYOUT.pack(*fields).ljust(MAP_BYTES, b"\0")


def _single(field: str, value: int, fields: list[int]) -> tuple[int, int]:
    """Return the place of a field and what it becomes."""
    if field == "global_address":
        return _ADDRESS, value
    if field == "rank":
        return _RANK, value + 1
    tables = {
        "elemtype": (_DTYPE, _ELEMENT_TYPES), "interleave_layout": (_INTERLEAVE, (0, 1, 2)),
        "swizzle_mode": (_SWIZZLE, _SWIZZLES), "fill_mode": (_FILL, (0, 1)),
        "swizzle_atomicity": (_SWIZZLE, _ATOMS),
    }  # fmt: skip
    place, table = tables[field]
    if not 0 <= value < len(table):
        raise FormatError(f"{field} has no value {value}")
    if field == "swizzle_atomicity" and fields[_SWIZZLE] not in _ATOMS:
        if value:
            raise FormatError("an atomicity other than 16 bytes goes with a swizzle of 128 bytes")
        return place, fields[_SWIZZLE]
    return place, int(table[value])
