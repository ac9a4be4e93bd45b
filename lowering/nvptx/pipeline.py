"""From LLVM text to PTX text, through `llvmlite.binding`.

Invariant: LLVM is initialised once, at the first use, and only modules that verify are optimised.
The ``.version`` and ``.target`` that LLVM prints are asserted, since it silently falls back to
PTX 8.0 for a feature that it does not know.
"""

from __future__ import annotations

from functools import cache

from llvmlite import binding

from astdsl.lowering.target import Target

TRIPLE = "nvptx64-nvidia-cuda"
PASSES = (
    # Functions of libdevice stand inside the kernel, so that what they share with it is shared.
    "always_inliner",
    # Counters, accumulators and what a loop carries become registers.
    "sroa",
    "instruction_combine",
    "simplify_cfg",
    "aggressive_dce",
)
"""What pays for the code that we write: LLVM's own level 1 takes twice as long for the same
registers, level 2 three times. The builder writes a value once, and the code generator looks for
more of them: a pass of their own changes no machine code, or makes it longer."""
CODE_LEVEL = 2
"""Level 3 takes longer for the same PTX; level 0 does not vectorise, and spills."""

_PTX_VERSIONS = {20: (8, 6), 21: (8, 8)}
_PTX_VERSION_FROM_LLVM_22 = (8, 8)


def llvm_version() -> tuple[int, int, int]:
    """Give the version of LLVM inside llvmlite."""
    major, minor, patch = binding.llvm_version_info
    return major, minor, patch


def ptx_version() -> tuple[int, int]:
    """Choose the PTX ISA version: the newest that this LLVM prints and drivers of 2025 take."""
    major = llvm_version()[0]
    if major < min(_PTX_VERSIONS):
        raise AssertionError(f"LLVM {major} is too old: llvmlite 0.46 (LLVM 20) is the oldest")
    return _PTX_VERSIONS.get(major, _PTX_VERSION_FROM_LLVM_22)


def generate(text: str, target: Target) -> str:
    """Optimise a module and give its PTX.

    Raises AssertionError if LLVM does not accept the text: that is a bug of the builder's user.
    """
    machine = target_machine(target)
    module = parse(text, machine)
    optimise(module, machine)
    ptx: str = machine.emit_assembly(module)
    _check_header(ptx, target)
    return ptx


def optimised(text: str, target: Target) -> str:
    """Give the LLVM text that `generate` prints as PTX, for those who look at it."""
    machine = target_machine(target)
    module = parse(text, machine)
    optimise(module, machine)
    return str(module)


def parse(text: str, machine: binding.TargetMachine) -> binding.ModuleRef:
    """Parse and verify LLVM assembly for a target machine."""
    try:
        module = binding.parse_assembly(text)
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise AssertionError(f"LLVM does not accept the text we wrote: {error}") from error
    return module


def optimise(module: binding.ModuleRef, machine: binding.TargetMachine) -> None:
    """Run our passes on a module, in place."""
    options = binding.create_pipeline_tuning_options()
    passes = binding.create_new_module_pass_manager()
    for name in PASSES:
        getattr(passes, f"add_{name}_pass")()
    passes.run(module, binding.create_pass_builder(machine, options))


def optimise_fully(module: binding.ModuleRef, machine: binding.TargetMachine) -> None:
    """Run LLVM's standard passes on a module, in place; they also resolve `__nvvm_reflect`."""
    options = binding.create_pipeline_tuning_options(speed_level=CODE_LEVEL)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


@cache
def target_machine(target: Target) -> binding.TargetMachine:
    """Give LLVM's description of a target; made once."""
    _initialise()
    major, minor = ptx_version()
    return binding.Target.from_triple(TRIPLE).create_target_machine(
        cpu=target.cpu, features=f"+ptx{major}{minor}", opt=CODE_LEVEL
    )


@cache
def _initialise() -> None:
    # Pointers to shared memory have 32 bits: of 64, each address would take two instructions.
    binding.set_option("astdsl", "-nvptx-short-ptr")
    # It verifies what it reads, and ends the process over a fault; we verify, and say where.
    binding.set_option("astdsl", "-disable-auto-upgrade-debug-info")
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def _check_header(ptx: str, target: Target) -> None:
    major, minor = ptx_version()
    header = ptx[: ptx.index(".address_size")]
    wanted = (f".version {major}.{minor}\n", f".target {target.name}\n")
    if not all(line in header for line in wanted):
        raise AssertionError(f"LLVM printed another PTX header than asked for: {header!r}")
