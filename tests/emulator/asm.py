"""Small PTX kernels for the tests: a header, declarations and a body."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from astdsl.emulator import DeviceFault

HEADER = """.version 8.8
.target {target}
.address_size 64
"""


def kernel(
    body: str,
    parameters: Sequence[str] = (),
    *,
    target: str = "sm_90a",
    shared_bytes: int = 0,
    registers: str = "",
) -> str:
    """Return a module with one kernel `k`; `parameters` are `.param` types or "map"."""
    declared = ",\n".join(_parameter(i, kind) for i, kind in enumerate(parameters))
    shared = f".shared .align 1024 .b8 smem[{shared_bytes}];" if shared_bytes else ""
    return f"""{HEADER.format(target=target)}
.visible .entry k(
{declared}
)
{{
  .reg .pred %p<32>;
  .reg .b16 %h<32>;
  .reg .b32 %r<400>;
  .reg .f32 %f<400>;
  .reg .b64 %d<64>;
  {registers}
  {shared}
{body}
  ret;
}}
"""


def _parameter(number: int, kind: str) -> str:
    if kind == "map":
        return f".param .align 64 .b8 a{number}[128]"
    return f".param .{kind} a{number}"


def map_address(register: str, number: int) -> str:
    """Return code that puts the generic address of a tensor map parameter into a register."""
    return f"mov.b64 {register}, a{number}; cvta.param.u64 {register}, {register};"


WAIT = """
WAIT_{name}:
  mbarrier.try_wait.parity{order}.shared::cta.b64 %p9, [{barrier}], {parity};
  @!%p9 bra WAIT_{name};
"""


def wait(barrier: str, parity: int | str, name: str = "a", order: str = "") -> str:
    """Return a loop, on lines of its own, that waits for a phase of an mbarrier."""
    return WAIT.format(barrier=barrier, parity=parity, name=name, order=order)


FILL = """
FILL:
  cvt.u64.u32 %d3, %r3;
  add.u64 %d4, %d0, %d3;
  add.u32 %r5, %r1, %r3;
  ld.global.v4.u32 {{%r6, %r7, %r8, %r9}}, [%d4];
  st.shared.v4.u32 [%r5], {{%r6, %r7, %r8, %r9}};
  add.u32 %r3, %r3, 2048;
  setp.lt.u32 %p1, %r3, {n_bytes};
  @%p1 bra FILL;
"""


def fill(n_bytes: int) -> str:
    """Return a loop in which 128 threads copy an image from %d0 to %r1; %r3 is 16 * thread."""
    return FILL.format(n_bytes=n_bytes)


def faulting(launch: Callable[..., object]) -> Callable[..., str]:
    """Return a function of a code and `launch`'s arguments that requires and returns the fault."""

    def fault(code: str, *arguments: Any, **keywords: Any) -> str:
        with pytest.raises(DeviceFault) as caught:
            launch(*arguments, **keywords)
        assert caught.value.code == code, str(caught.value)
        return str(caught.value)

    return fault
