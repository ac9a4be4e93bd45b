"""Run PTX on the CPU: the public entry of the emulator.

Invariant: `run` changes nothing but the memory that its arguments point at.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from astdsl.emulator.arguments import Unwritten, bind
from astdsl.emulator.asynchronous import Completion
from astdsl.emulator.constancy import Constancy
from astdsl.emulator.global_memory import GlobalMemory
from astdsl.emulator.global_races import GlobalRaces
from astdsl.emulator.limits import Triple, check_launch, cluster_of, triple
from astdsl.emulator.machine import Fences, Launch, Machine, Sums
from astdsl.emulator.memory import Memory
from astdsl.emulator.options import require_options
from astdsl.emulator.orders import Order
from astdsl.emulator.program import Program, prepare
from astdsl.emulator.registers import RegisterFile
from astdsl.emulator.row_memory import RowMemory
from astdsl.emulator.scalars import Array
from astdsl.emulator.special import Specials
from astdsl.emulator.text import parse
from astdsl.emulator.undefined import unwritten_register
from astdsl.emulator.waiting import WaitingClusters

BATCH_LANES = 1 << 15
BATCH_BYTES = 1 << 28
# Blocks that wait for each other through global memory must run at the same time: as many as a
# large GPU has multiprocessors (148) always do.
RESIDENT_BLOCKS = 148
MAX_CACHED = 64
# Of registers and on-chip memory that are kept from one launch for the next.
SPARE_BYTES = 1 << 26
# Rows of local memory: as strict as the widest access.
LOCAL_ALIGN_BYTES = 32


class _Programs:
    """The programs prepared last, by the text they came from."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Program] = OrderedDict()

    def get(self, ptx: str, kernel: str) -> Program:
        """Return the program of a kernel, prepared once for each text."""
        key = (hashlib.sha256(ptx.encode()).hexdigest(), kernel)
        program = self._kept.get(key)
        if program is None:
            with np.errstate(all="ignore"):
                program = self._kept[key] = prepare(parse(ptx), kernel)
            if len(self._kept) > MAX_CACHED:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return program


_PROGRAMS = _Programs()


def entries(ptx: str) -> list[str]:
    """Return the names of the kernels of a PTX text, in its order. Raises `DeviceFault`."""
    require_options(ptx=ptx)
    return [f.name for f in parse(ptx).functions.values() if f.is_entry]


def run(
    ptx: str,
    kernel: str,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    *,
    cluster: Sequence[int] | None = None,
    shared_bytes: int = 0,
    completion: Completion = "late",
    order: Order = "min-pc",
    uninitialised: Sequence[Array | Unwritten] = (),
    check: bool = True,
    strict: bool | None = None,
    fp8_accumulate: Sums = "exact",
    exclusive: bool = False,
    crew_threads: int = 0,
) -> None:
    """Run a kernel of a PTX text for a whole grid.

    `args` are arrays (the kernel gets a pointer and changes them in place), numbers (converted to
    the parameter's type), `VirtualBuffer` or `TensorMap` objects, or integers for raw pointers.
    `cluster` is what the kernel requires, else one block. `shared_bytes` is the dynamic shared
    memory of a block. Asynchronous work completes as "late" or
    as "early" as is legal, or at moments drawn from an integer seed; `order` says which threads go
    first: those that are behind ("min-pc"), ahead ("max-pc"), each in turn ("round-robin"), or at
    random from an integer seed. The contents of the arrays in `uninitialised` count as unwritten;
    an `Unwritten` keeps what this run wrote for the next.
    With `exclusive` no two blocks (of different clusters) may store in one place, where no atomics
    let them wait for each other; nor two crews of `crew_threads` threads of a block, if not 0.
    Without `check` hazards between threads are not looked for. `strict` says whether a missing
    `tcgen05.fence` or `fence.mbarrier_init` is a fault, and a race in global memory between warps
    of a block; by default it is one in programs that have any of that kind, or any barrier, since
    some leave them out. With `fp8_accumulate="hardware"` the FP8 products of `wgmma` are summed in
    the 14 bits that Hopper keeps. Raises `DeviceFault`.
    """
    require_options(
        ptx=ptx, kernel=kernel, args=args, uninitialised=uninitialised, shared_bytes=shared_bytes,
        completion=completion, order=order, fp8_accumulate=fp8_accumulate, check=check,
        strict=strict, exclusive=exclusive, crew_threads=crew_threads,
    )  # fmt: skip
    program = _PROGRAMS.get(ptx, kernel)
    memory = GlobalMemory()
    if check and program.loads_constants:
        memory.constancy = Constancy()
    if check:
        memory.races = GlobalRaces(exclusive=exclusive, crew_threads=crew_threads)
    grid3, block3 = triple(grid), triple(block)
    cluster3 = cluster_of(program.kernel, cluster)
    total_bytes = program.layout.dynamic_start + shared_bytes
    check_launch(program.kernel, grid3, block3, cluster3, total_bytes)
    parameters, variables = bind(program, args, memory, uninitialised)
    waiting = WaitingClusters(grid3, cluster3)
    size = cluster3[0] * cluster3[1] * cluster3[2]
    batch = _batch_blocks(program, block3, cluster3, shared_bytes) // size
    if program.cancels_clusters:
        # Let there be something to cancel: a GPU is never so large that all of a grid runs.
        batch = min(batch, -(-len(waiting) // 3))
    storage = _SPARE.take()
    while len(waiting):
        launch = Launch(
            grid3, block3, cluster3, waiting.launch(batch), completion, check, order,
            program.fences if strict is None else Fences.every(strict), waiting,
            fp8_accumulate,
        )  # fmt: skip
        if storage is None or not storage.fits(program, launch, shared_bytes):
            storage = _Storage(program, launch, shared_bytes)
        storage.machine(launch, memory, parameters, variables).run()
    _SPARE.keep(storage)


class _Storage:
    """Registers and on-chip memory for a number of blocks, used by one batch after another."""

    def __init__(self, program: Program, launch: Launch, shared_bytes: int) -> None:
        self.program = program
        self.n_blocks = n_blocks = len(launch.index[0])
        n_lanes = n_blocks * launch.n_threads
        layout = program.layout
        self.dynamic_bytes = shared_bytes
        self.registers = RegisterFile(layout.register_counts, n_lanes)
        self.shared = RowMemory(n_blocks, layout.dynamic_start + shared_bytes)
        n_rows = n_lanes if layout.local_bytes else 0
        self.local = RowMemory(n_rows, layout.local_bytes, LOCAL_ALIGN_BYTES)
        self.thread = np.repeat(np.arange(launch.n_threads, dtype=np.uint32), n_blocks)
        self.block_of = np.tile(np.arange(n_blocks), launch.n_threads)
        self.fresh = True

    def fits(self, program: Program, launch: Launch, shared_bytes: int) -> bool:
        """Say whether it is for this program and as many blocks as large as those of a batch."""
        blocks = self.n_blocks == len(launch.index[0])
        same = self.program is program and self.dynamic_bytes == shared_bytes
        return same and blocks and len(self.thread) == self.n_blocks * launch.n_threads

    @property
    def size_bytes(self) -> int:
        """Return how much memory it takes, about."""
        registers = sum(bank.nbytes for bank in self.registers.banks.values())
        return registers + 2 * (self.shared.data.nbytes + self.local.data.nbytes)

    def machine(
        self, launch: Launch, memory: GlobalMemory, parameters: Array, variables: list[int]
    ) -> Machine:
        """Make the machine of one batch, with everything on chip as after a launch."""
        if not self.fresh:
            self.shared.reset()
            self.local.reset()
            self.registers.undefined.clear()
        self.fresh = False
        if launch.check:
            for number, place in enumerate(self.program.unwritten):
                row = self.registers.banks[place[0]][place[1]]
                self.registers.undefined[place] = unwritten_register(number, row)
        special = Specials(
            launch, self.thread, self.block_of, self.dynamic_bytes, self.shared.size_bytes
        )
        spaces = Memory(memory, self.shared, self.local, parameters, variables)
        return Machine(self.program, launch, self.registers, spaces, special)


class _Spare:
    """The storage of the launch before, for the next one of the same program.

    What is fresh takes a fault of each page, which can be more than the instructions take.
    """

    def __init__(self) -> None:
        self._kept: list[_Storage] = []

    def take(self) -> _Storage | None:
        """Return it; a launch that begins before this one ends has none."""
        try:
            return self._kept.pop()
        except IndexError:
            return None

    def keep(self, storage: _Storage | None) -> None:
        """Keep what a launch has used, in place of what was kept before."""
        if storage is not None and storage.size_bytes <= SPARE_BYTES:
            self._kept[:] = [storage]


_SPARE = _Spare()


def _batch_blocks(program: Program, block: Triple, cluster: Triple, shared_bytes: int) -> int:
    """Return how many blocks run at a time, whole clusters, so that memory stays bounded."""
    layout = program.layout
    threads = block[0] * block[1] * block[2]
    register_bytes = sum(max(bits // 8, 1) * n for bits, n in layout.register_counts.items())
    block_bytes = threads * (register_bytes + 2 * layout.local_bytes)
    block_bytes += 2 * (layout.dynamic_start + shared_bytes)
    blocks = min(BATCH_LANES // threads, BATCH_BYTES // max(block_bytes, 1))
    if program.meets_other_blocks:
        blocks = max(blocks, RESIDENT_BLOCKS)
    size = cluster[0] * cluster[1] * cluster[2]
    return max(blocks // size, 1) * size
