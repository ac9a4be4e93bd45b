"""Small PTX kernels for the tests: a header, declarations and a body."""

from collections.abc import Sequence

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
  mov.u32 %r90, 0;
WAIT_{name}:
  mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barrier}], {parity};
  @!%p9 bra WAIT_{name};
"""


def wait(barrier: str, parity: int, name: str = "a") -> str:
    """Return a loop that waits for a phase."""
    return WAIT.format(barrier=barrier, parity=parity, name=name)
