"""Small PTX kernels for the tests: a header, declarations and a body."""

HEADER = """.version 8.8
.target {target}
.address_size 64
"""


def kernel(body, parameters=(), *, target="sm_90a", shared_bytes=0, registers=""):
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


def _parameter(number, kind):
    if kind == "map":
        return f".param .align 64 .b8 a{number}[128]"
    return f".param .{kind} a{number}"


def map_address(register, number):
    """Return code that puts the generic address of a tensor map parameter into a register."""
    return f"mov.b64 {register}, a{number}; cvta.param.u64 {register}, {register};"


WAIT = """
  mov.u32 %r90, 0;
WAIT_{name}:
  mbarrier.try_wait.parity.shared::cta.b64 %p9, [{barrier}], {parity};
  @!%p9 bra WAIT_{name};
"""


def wait(barrier, parity, name="a"):
    """Return a loop that waits for a phase."""
    return WAIT.format(barrier=barrier, parity=parity, name=name)
