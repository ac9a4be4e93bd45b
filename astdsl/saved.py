"""A compiled kernel as one file: a zip of PTX, cubin, typed IR and a JSON manifest.

Invariant: what is read back is checked member by member and field by field, and nothing in it is
executed but by the device; a file that is not exactly what `write` makes is refused.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

from astdsl.call import Callee
from astdsl.errors import BadArgument
from astdsl.frontend.signature import MISSING, ConstantParameter, Parameter, Signature
from astdsl.ir.core import IN, INOUT, OUT, Module
from astdsl.ir.parser import parse_module
from astdsl.ir.printer import print_module
from astdsl.ir.verify import verify
from astdsl.lang.annotations import ArraySpec, Dim
from astdsl.records import dataclass
from astdsl.runtime.artifact import Code
from astdsl.runtime.plans import (
    BadData,
    count,
    data_of,
    data_of_span,
    dtype_of,
    fields_of,
    items,
    plan_of,
    sequence,
    span_of,
    text,
)

FORMAT = 1
MANIFEST, IR, PTX, CUBIN = "manifest.json", "kernel.ir", "kernel.ptx", "kernel.cubin"
LARGEST_MEMBER_BYTES = 256 << 20
NUMBERS = (bool, int, float)
# What `zipfile` raises of bytes that are no zip, or of a path that no file can have.
NO_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class Saved:
    """All that launching a kernel needs; `static` are the dims that are compile-time constants."""

    signature: Signature
    module: Module
    static: dict[tuple[str, int], int]
    code: Code
    cubin: bytes

    @property
    def callee(self) -> Callee:
        """What a call is resolved against: there is no function any more."""
        return Callee(None, self.signature)


def write(path: Path, saved: Saved) -> None:
    """Write a kernel to a file, which appears whole or not at all.

    Raises BadArgument for a path that no file can be written to.
    """
    members = {
        IR: print_module(saved.module, spans=True).encode(),
        PTX: saved.code.ptx.encode(),
        **({CUBIN: saved.cubin} if saved.cubin else {}),
    }
    manifest = {
        "format": FORMAT,
        "signature": _data_of_signature(saved.signature),
        "static": [[name, axis, extent] for (name, axis), extent in saved.static.items()],
        "plan": data_of(saved.code.plan),
        "digests": {name: hashlib.sha256(held).hexdigest() for name, held in members.items()},
    }
    held = json.dumps(manifest, indent=1).encode()
    try:
        _write(path, {MANIFEST: held, **members})
    except (OSError, ValueError) as error:
        raise BadArgument(
            f"`{path}` cannot be written: {getattr(error, 'strerror', None) or error}",
            help="name a file in a folder that is there and can be written",
        ) from None


def _write(path: Path, members: dict[str, bytes]) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as file:
            for name, held in members.items():
                # A fixed date, so that the same kernel is the same file.
                file.writestr(zipfile.ZipInfo(name), held, zipfile.ZIP_DEFLATED)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path) -> Saved:
    """Read a kernel from a file. Raises BadArgument for a file that `write` has not made."""
    try:
        return _saved(_members(path))
    except OSError as error:
        raise BadArgument(
            f"`{path}` cannot be read: {error.strerror or error}",
            help="pass the path that `kernel.lower(...).save(path)` wrote",
        ) from None
    except BadData as error:
        raise BadArgument(
            f"`{path}` is no kernel that this version saved: {error}",
            help="save it again, by `kernel.lower(...).save(path)`",
        ) from None


def _members(path: Path) -> dict[str, bytes]:
    try:
        return _members_of(path)
    except NO_ZIP as error:
        raise BadData(str(error)) from None


def _members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        listed = file.infolist()
        names = {info.filename for info in listed}
        if len(names) != len(listed) or names - {CUBIN} != {MANIFEST, IR, PTX}:
            raise BadData(f"it holds {', '.join(sorted(names)) or 'nothing'}")
        if any(info.file_size > LARGEST_MEMBER_BYTES for info in listed):
            raise BadData(f"a part of it is larger than {LARGEST_MEMBER_BYTES} bytes")
        return {name: file.read(name) for name in names}


def _saved(members: dict[str, bytes]) -> Saved:
    manifest = _json(members.pop(MANIFEST))
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadData("it has another format")
    fields = fields_of(manifest, "format", "signature", "static", "plan", "digests")
    digests = {name: hashlib.sha256(held).hexdigest() for name, held in members.items()}
    if fields["digests"] != digests:
        raise BadData("it was changed after it was saved")
    module = _module(_decoded(members[IR]))
    saved = Saved(
        signature=_signature(fields["signature"]),
        module=module,
        static=dict(items(fields["static"], _static)),
        code=Code(_decoded(members[PTX]), plan_of(fields["plan"])),
        cubin=members.get(CUBIN, b""),
    )
    named = {p.name for p in saved.signature.params}
    if not named.issuperset(p.name for p in module.params):
        raise BadData("its signature is of another kernel")
    return saved


def _decoded(held: bytes) -> str:
    try:
        return held.decode()
    except UnicodeDecodeError as error:
        raise BadData(str(error)) from None


def _json(held: bytes) -> Any:
    try:
        return json.loads(_decoded(held))
    except ValueError as error:
        raise BadData(str(error)) from None


def _module(printed: str) -> Module:
    try:
        module = parse_module(printed)
        verify(module)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise BadData(f"its typed IR is not valid: {error}") from None
    return module


def _static(data: Any) -> tuple[tuple[str, int], int]:
    name, axis, extent = sequence(data, 3)
    return (text(name), count(axis)), count(extent)


def _data_of_signature(signature: Signature) -> dict[str, Any]:
    return {
        "name": signature.name,
        "span": data_of_span(signature.span),
        "params": [_data_of_param(p) for p in signature.params],
        # Of the constants only those matter that a dim may name: the others are in the code.
        "constants": [
            [c.name, data_of_span(c.span), c.default]
            for c in signature.constants
            if type(c.default) is int
        ],
    }


def _signature(data: Any) -> Signature:
    fields = fields_of(data, "name", "span", "params", "constants")
    return Signature(
        text(fields["name"]),
        span_of(fields["span"]),
        items(fields["params"], _param),
        items(fields["constants"], _constant),
    )


def _constant(data: Any) -> ConstantParameter:
    name, span, value = sequence(data, 3)
    if type(value) is not int:
        raise BadData("a constant of a dim is an integer")
    return ConstantParameter(text(name), span_of(span), value)


def _data_of_param(p: Parameter) -> dict[str, Any]:
    return {
        "name": p.name,
        "span": data_of_span(p.span),
        "spec": p.spec and _data_of_spec(p.spec),
        "dtype": p.dtype and p.dtype.name,
        "default": [] if p.default is MISSING else [p.default],
        "optional": p.optional,
    }


def _param(data: Any) -> Parameter:
    fields = fields_of(data, "name", "span", "spec", "dtype", "default", "optional")
    default = items(fields["default"], _number)
    return Parameter(
        text(fields["name"]),
        span_of(fields["span"]),
        None if fields["spec"] is None else _spec(fields["spec"]),
        None if fields["dtype"] is None else dtype_of(fields["dtype"]),
        default[0] if default else MISSING,
        _flag(fields["optional"]),
    )


def _data_of_spec(spec: ArraySpec) -> dict[str, Any]:
    return {
        "role": spec.role,
        "dtypes": [dtype.name for dtype in spec.dtypes],
        "dims": None if spec.dims is None else [dim.text for dim in spec.dims],
        "any_rank": spec.any_rank,
        "initial": spec.initial,
    }


def _spec(data: Any) -> ArraySpec:
    fields = fields_of(data, "role", "dtypes", "dims", "any_rank", "initial")
    if fields["role"] not in (IN, OUT, INOUT):
        raise BadData(f"there is no role {fields['role']!r}")
    return ArraySpec(
        fields["role"],
        items(fields["dtypes"], dtype_of),
        None if fields["dims"] is None else items(fields["dims"], lambda d: Dim(text(d))),
        _flag(fields["any_rank"]),
        _number(fields["initial"]),
    )


def _number(data: Any) -> Any:
    if data is not None and type(data) not in NUMBERS:
        raise BadData("expected a number or null")
    return data


def _flag(data: Any) -> bool:
    if type(data) is not bool:
        raise BadData("expected true or false")
    return data
