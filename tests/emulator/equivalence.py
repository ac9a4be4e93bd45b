"""Why some mutants of synchronisation mean the same as the program: a table of reasons.

Invariant: a reason holds whatever the schedule; it is looked for in the text around the mutated
instruction, so that it keeps being checked while the compiler changes. What it rests on:

* All threads of a warpgroup execute `wgmma.wait_group`, and a product is complete for all of its
  warps together: CUTLASS's consumers release a slot by one thread of a warpgroup after it.
* An mbarrier's phase, or a commit's, is awaited by every thread that goes on.
* What control flow reaches from an instruction, or comes from, is read off the branches and labels
  of the text, as if each could be taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from tests.emulator.mutants import Mutant

BAR = re.compile(r"^(?:@own )?bar\.sync")
FENCE = re.compile(r"fence\.(?:mbarrier_init|proxy\.async)")
SHARED = re.compile(
    r"(?:ld|st)\.(?:volatile\.|relaxed\.)?shared|bulk_group \[|(?:ld|st)matrix|red\.|atom\."
)
SIGNALS = re.compile(
    r"mbarrier\.(?!init)|^bar\.|cp\.async\.bulk\.(?!wait|commit)|tcgen05\.commit|wgmma\.mma"
)
WAITS = re.compile(r"wgmma\.wait_group|mbarrier\.try_wait|tcgen05\.wait")
TENSOR = re.compile(r"tcgen05\.(?:ld|st|mma|cp)\b")
ACCESS = re.compile(rf"{SHARED.pattern}|{SIGNALS.pattern}|{TENSOR.pattern}")
USES = re.compile(rf"{ACCESS.pattern}|mbarrier|tcgen05\.alloc")
STORE = re.compile(r"global\.shared::cta\S*bulk_group \[")
# An ordinary access of memory that other threads may see.
ORDINARY = re.compile(r"\b(?:ld|st)\.(?!param|local)|(?:ld|st)matrix|\b(?:red|atom)\.")
GLOBAL_LOAD = re.compile(r"\bld\.\S*global")
# A word, or a barrier of other blocks, by which others learn of what was done before.
TELLS = re.compile(
    r"\b(?:st|red|atom)\.(?:\w+\.)*(?:release|acq_rel|relaxed)|fence\.acq_rel|membar"
)
MEETING = re.compile(r"^(?:@own )?bar(?:rier)?\.(?:sync|cluster\.wait)")
# Not `st.async` and `red.async`: NVIDIA's example of them fences nothing but by cluster.sync().
ASYNC_SIGNAL = re.compile(r"(?:cp|clusterlaunchcontrol)\.\S*complete_tx|tcgen05\.commit")
CLUSTER_ARRIVE = re.compile(r"barrier\.cluster\.arrive")
READ_ALL = re.compile(r"bulk\.wait_group\.read 0;")
BULK_STORE = re.compile(r"global\.shared::cta")
GLOBAL_USE = re.compile(r"\b(?:st|ld|red|atom)\.(?!shared|param|local)\S*|\bfence\.acq|membar")
SHARED_USE = re.compile(
    r"\b(?:st|ld|red|atom)\.(?:\w+\.)*shared|(?:ld|st)matrix|mbarrier\.(?!try|test)|wgmma\.mma"
    r"|cp\.(?:reduce\.)?async|tcgen05\.(?!wait|fence)"
)
INIT_FENCE = re.compile(r"fence\.mbarrier_init")
LABEL = re.compile(r"^(\$\w+):")
BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")

Holds = Callable[[list[str], Mutant], bool]


def equivalence(lines: list[str], mutant: Mutant) -> str:
    """Return why a mutant is equivalent, "" if no reason is known."""
    text = [line.strip() for line in lines]
    return next((reason for reason, holds in REASONS.items() if holds(text, mutant)), "")


def bars_of(mutant: Mutant) -> re.Pattern[str]:
    """Return what the barriers look like that the threads of a barrier come to."""
    own = re.match(r"@own bar\.sync \d+,", mutant.before)
    return re.compile(rf"^bar\.sync|^{re.escape(own[0])}") if own else re.compile(r"^bar\.sync")


def one_warp_on_both_sides(lines: list[str], mutant: Mutant, warps: Mapping[int, set[int]]) -> bool:
    """Say whether a block's barrier only stands between uses of memory by one warp.

    `warps` execute each line. Waits for mbarriers do not count, but where one is made or ended.
    """
    text = [line.strip() for line in lines]
    bars = bars_of(mutant)
    if not _is(mutant, BAR.pattern):
        return False
    before, after = (reached(text, mutant.line, step, bars) for step in (-1, 1))
    waits = re.compile(r"mbarrier\.(?:try|test)_wait")
    makes = re.compile(r"mbarrier\.in")
    if _any([text[i] for i in before | after], makes) and _any(
        [text[i] for i in before | after], waits
    ):
        return False
    for space in (GLOBAL_USE, SHARED_USE):
        sides = [{i for i in side if space.search(text[i])} for side in (before, after)]
        if all(sides) and len(set().union(*(warps.get(i, set()) for i in sides[0] | sides[1]))) > 1:
            return False
    return True


def _between(text: list[str], start: int, pattern: re.Pattern[str], step: int) -> list[str]:
    """Return the lines from `start`, exclusive, to the next that matches; all where none does."""
    end = len(text) if step > 0 else -1
    found = []
    for at in range(start + step, end, step):
        if pattern.search(text[at]):
            break
        found.append(text[at])
    return found


def _any(lines: list[str], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(line) for line in lines)


def _back_branches(text: list[str], line: int) -> Iterator[int]:
    """Yield the branches after a line that lead to before it: the ends of its loops."""
    places = _labels(text)
    for at in range(line, len(text)):
        branch = BRANCH.search(text[at])
        if branch and places.get(branch[1], line + 1) <= line:
            yield at


def _returns(text: list[str], line: int) -> Iterator[int]:
    """Yield the beginnings of the loops that a line is in."""
    for at in _back_branches(text, line):
        branch = BRANCH.search(text[at])
        if branch:
            yield _labels(text)[branch[1]]


def _labels(text: list[str]) -> dict[str, int]:
    return {m[1]: i for i, line in enumerate(text) if (m := LABEL.match(line))}


def _is(mutant: Mutant, pattern: str, change: str = "deleted") -> bool:
    return bool(re.match(pattern, mutant.before)) and mutant.change.startswith(change)


def _other_fence_shows_barriers(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"fence\.mbarrier_init"):
        return False
    rest = _between(text, mutant.line, SIGNALS, 1)
    return any("fence.proxy.async" in line for line in rest)


def _nothing_to_cover(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"fence\.proxy\.async"):
        return False
    before = text[: mutant.line]
    shown = _between(text, mutant.line, SIGNALS, -1)
    return not _any(before, SHARED) and any("fence.mbarrier_init" in line for line in shown)


def _next_to_another_barrier(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, BAR.pattern):
        return False
    bars = bars_of(mutant)
    after, before = _between(text, mutant.line, bars, 1), _between(text, mutant.line, bars, -1)
    has_next, has_last = len(after) < len(text) - mutant.line - 1, len(before) < mutant.line
    loops = list(_returns(text, mutant.line))
    # What is only made between the two, barriers and allocations, the second one publishes.
    orders_for_next = has_next and not _any(after, ACCESS)
    waits = _any(before, re.compile("wait_group")) and _any(text[: mutant.line], STORE)
    return not loops and (orders_for_next or (has_last and not _any(before, USES) and not waits))


def _threads_touch_nothing(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, BAR.pattern):
        return False
    bars = bars_of(mutant)
    before = _between(text, mutant.line, bars, -1)
    for branch in _back_branches(text, mutant.line):
        before += _between(text, branch, bars, -1)
    # The address of tensor memory, once it is there, nothing overwrites.
    shared = [line for line in before if SHARED.search(line) and not _reads_address(text, line)]
    # Nor may products use tensor memory after it that the warps have used before it.
    touched = any(re.search(r"tcgen05\.(?:ld|st)\b", line) for line in before)
    after = _between(text, mutant.line, bars, 1)
    # Nor may an mbarrier end that others still wait for.
    if any("mbarrier.inval" in line for line in after):
        return False
    if touched and any(re.search(r"tcgen05\.(?:mma|cp)\b", line) for line in after):
        return False
    return not shared and _any(before, WAITS)


def _reads_address(text: list[str], line: str) -> bool:
    allocates = any("tcgen05.alloc" in each for each in text)
    return allocates and bool(re.match(r"ld\.shared\.b32\s+%r\d+, \[smem", line))


def _shown_before(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"(?:@!?%?\w+ )?fence\.mbarrier_init"):
        return False
    before = [text[i] for i in reached(text, mutant.line, -1, INIT_FENCE)]
    return _any(before, INIT_FENCE) and not any("mbarrier.init" in line for line in before)


def _column(text: list[str], register: str) -> str:
    """Return where in tensor memory an address lies, as far as the text adds constants to a base.

    Lanes are left out: warps add theirs from a register.
    """
    offset = 0
    for _ in range(8):
        made = re.compile(rf"add\.s32\s+{re.escape(register)}, (%r\d+), (\d+|%r\d+);")
        found = next((match for line in text if (match := made.search(line))), None)
        if found is None:
            break
        register = found[1]
        offset += int(found[2]) if found[2].isdecimal() else 0
    return f"{register} + {offset}"


def _columns_of(text: list[str], lines: list[str]) -> set[str]:
    accesses = (re.search(r"tcgen05\.(?:ld|st|mma|cp)\b.*", line) for line in lines)
    found = [r for access in accesses if access for r in re.findall(r"\[ ?(%r\d+)", access[0])]
    return {_column(text, register) for register in found}


def _only_own_products_before(text: list[str], mutant: Mutant) -> bool:
    """Say whether what comes before a fence is products alone, which one thread issues in order."""
    if not _is(mutant, r"tcgen05\.fence::after"):
        return False
    after = _between(text, mutant.line, TENSOR, 1)
    at = mutant.line + 1 + len(after)
    before = [text[i] for i in reached(text, mutant.line, -1) if TENSOR.search(text[i])]
    return at < len(text) and all("tcgen05.mma" in line for line in (*before, text[at]))


def _other_columns_between(text: list[str], mutant: Mutant) -> bool:
    """Say whether another fence of the kind does for the columns that this one stands beside."""
    if not _is(mutant, r"tcgen05\.fence"):
        return False
    kind = re.compile(re.escape(mutant.before.rstrip(";")))
    step = -1 if "after" in mutant.before else 1
    # What it orders: the access next to it; on the other side, up to the fence that does as well.
    near = _between(text, mutant.line, TENSOR, -step)
    at = mutant.line - step * (len(near) + 1)
    span = reached(text, mutant.line, step, kind)
    others = [line for i in span if kind.search(line := text[i]) and i != mutant.line]
    mine = _columns_of(text, [text[at]]) if 0 <= at < len(text) else set()
    return bool(others and mine) and not mine & _columns_of(text, [text[i] for i in span])


def _waited_before(text: list[str], mutant: Mutant) -> bool:
    """Say whether the same registers, barrier and phase, have been waited for just before."""
    wait = re.compile(r"mbarrier\.try_wait\S* (\w+|%\w+), \[(%\w+)\], (%\w+);")
    mine = wait.search(mutant.before)
    if not mine or mutant.change not in ("relaxed", "deleted", "next barrier"):
        return False
    sets = re.compile(rf"^\S+\s+(?:{re.escape(mine[2])}|{re.escape(mine[3])}),")
    for line in reversed(text[: mutant.line]):
        found = wait.search(line)
        if found and found[2] == mine[2] and found[3] == mine[3]:
            return True
        if sets.search(line) or (BRANCH.search(line) and "$" in line and not line.startswith("@")):
            return False
    return False


def _nothing_follows(text: list[str], mutant: Mutant) -> bool:
    """Say whether only the block's own end is after a barrier, and no word that tells others."""
    if not _is(mutant, BAR.pattern):
        return False
    rest = [text[at] for at in reached(text, mutant.line, 1)]
    return not _any(rest, USES) and not _any(rest, TELLS)


def reached(text: list[str], line: int, step: int, stop: re.Pattern[str] | None = None) -> set[int]:
    """Return the lines that control flow reaches after a line, or, with -1, comes from.

    Lines that match `stop` are included, and nothing beyond them.
    """
    edges = _flow(text)
    if step < 0:
        back: dict[int, set[int]] = {}
        for source, targets in edges.items():
            for target in targets:
                back.setdefault(target, set()).add(source)
        edges = back
    found: set[int] = set()
    open_lines = [line]
    while open_lines:
        for at in edges.get(open_lines.pop(), ()):
            if at not in found:
                found.add(at)
                if stop is None or not stop.search(text[at]):
                    open_lines.append(at)
    return found


def _flow(text: list[str]) -> dict[int, set[int]]:
    """Return the lines that may follow each line; a label in braces is the nearest of its name."""
    names: dict[str, list[int]] = {}
    for at, line in enumerate(text):
        for name in re.findall(r"(?:^|[;{] *)([$\w]+):(?!:)", line):
            names.setdefault(name, []).append(at)
    edges = {}
    for at, line in enumerate(text):
        following = set()
        for guard, name in re.findall(r"(@!?%?\w+ +)?\bbra(?:\.uni)?\s+([$\w]+);", line):
            following.add(min(names.get(name, [at + 1]), key=lambda place: abs(place - at)))
            if not guard:
                break
        else:
            if not re.match(r"(?:ret|exit);", line):
                following.add(at + 1)
        edges[at] = {place for place in following if place < len(text)}
    return edges


def _arrival_tells_nothing(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"(?:@!?%?\w+ )?mbarrier\.arrive\.expect_tx", "relaxed"):
        return False
    before = [text[at] for at in reached(text, mutant.line, -1, MEETING)]
    # What it has read in global memory nobody overwrites because of an mbarrier.
    # Nor does anything overwrite the address of tensor memory, once it is there.
    return not any(
        ORDINARY.search(line) and not GLOBAL_LOAD.search(line) and not _reads_address(text, line)
        for line in before
    )


def _map_fence_orders(text: list[str], mutant: Mutant) -> bool:
    stores = _is(mutant, r"(?:@!?%?\w+ )?st\.release", "relaxed")
    if not stores and not _is(mutant, r"ld\.acquire", "relaxed"):
        return False
    step, fence = (-1, "cp_fenceproxy") if stores else (1, "tensormap::generic.acquire")
    stop = re.compile(rf"{fence}|{ORDINARY.pattern}")
    ends = [text[at] for at in reached(text, mutant.line, step, stop) if stop.search(text[at])]
    return bool(ends) and all(fence in line or line == mutant.before for line in ends)


def _only_barriers_were_made(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"barrier\.cluster\.arrive", "relaxed"):
        return False
    before = [text[at] for at in reached(text, mutant.line, -1, MEETING)]
    shown = any("fence.mbarrier_init" in line for line in before)
    return shown and not any(ORDINARY.search(line) or "tcgen05.alloc" in line for line in before)


def _cluster_only_ends(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"barrier\.cluster\.arrive", "relaxed"):
        return False
    after = [text[at] for at in reached(text, mutant.line, 1)]
    if any("tcgen05.dealloc" in line for line in after):
        return False
    return not _any(after, USES) and not any(ORDINARY.search(line) for line in after)


def _cluster_shows_barriers(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"(?:@!?%?\w+ )?fence\.mbarrier_init") or _any(text, ASYNC_SIGNAL):
        return False
    after = [text[at] for at in reached(text, mutant.line, 1, CLUSTER_ARRIVE)]
    arrive = [line for line in after if CLUSTER_ARRIVE.search(line)]
    used = [line for line in after if SIGNALS.search(line) and "barrier.cluster" not in line]
    return bool(arrive) and not used and not any("relaxed" in line for line in arrive)


def _stores_were_read(text: list[str], mutant: Mutant) -> bool:
    if (
        not _is(mutant, r"(?:@!?%?\w+ )?cp\.async\.bulk\.wait_group \d", "")
        or ".read" in mutant.before
    ):
        return False
    before = [text[at] for at in reached(text, mutant.line, -1, READ_ALL)]
    after = [text[at] for at in reached(text, mutant.line, 1)]
    return not _any(before, BULK_STORE) and not _any(after, USES) and not _any(after, TELLS)


def _copy_of_a_map_is_the_warps(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"bar\.warp\.sync"):
        return False
    before = [text[at] for at in reached(text, mutant.line, -1, re.compile("cp_fenceproxy"))]
    return any("cp_fenceproxy" in line for line in before) and not any(
        ORDINARY.search(line) for line in before
    )


def _whole_block_meets(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"bar\.sync \d+, (\d+);", "other barrier"):
        return False
    threads = re.search(r"\.(?:maxntid|reqntid) (\d+)", "\n".join(text))
    whole = threads is not None and threads[1] == re.findall(r"\d+", mutant.before)[1]
    # Nobody is on the way to another barrier, unless by an arrival without a wait.
    return whole and not any(re.search(r"\bbar(?:rier)?\.arrive", line) for line in text)


def _no_product_since_the_wait(text: list[str], mutant: Mutant) -> bool:
    if not mutant.before.startswith("wgmma.wait_group"):
        return False
    waits = re.compile(r"wgmma\.wait_group\S* 0;")
    before = [text[i] for i in reached(text, mutant.line, -1, waits)]
    return _any(before, waits) and not any("wgmma.mma" in line for line in before)


def _permit_is_for_others(text: list[str], mutant: Mutant) -> bool:
    return _is(mutant, r"(?:@!?%?\w+ )?tcgen05\.relinquish_alloc_permit")


def _waited_again(text: list[str], mutant: Mutant) -> bool:
    """Say whether the same barrier is waited for again before anything relies on it.

    Of a test of the other phase only the answer differs, which no loop may ask for again.
    """
    mine = re.search(r"mbarrier\.test_wait\S* \S+, (\[%\w+\])", mutant.before)
    if not mine or mutant.change not in ("relaxed", "other parity"):
        return False
    if mutant.change == "other parity" and any(_back_branches(text, mutant.line)):
        return False
    again = re.compile(rf"mbarrier\.try_wait\S* \S+, {re.escape(mine[1])}")
    after = [text[at] for at in reached(text, mutant.line, 1, again)]
    return _any(after, again) and not any(ORDINARY.search(line) for line in after)


def _no_store_before(text: list[str], mutant: Mutant) -> bool:
    if not re.match(r"cp\.async\.bulk\.wait_group\.read", mutant.before):
        return False
    before = [text[at] for at in reached(text, mutant.line, -1)]
    return not _any(before, BULK_STORE) and _any(text, STORE)


def _tensor_fence_orders_nothing(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"tcgen05\.fence"):
        return False
    starts = [mutant.line, *_returns(text, mutant.line)]
    if not _any(text[: mutant.line], TENSOR) and len(starts) == 1:
        return True
    kind = re.compile(re.escape(mutant.before.rstrip(";")))
    for start in starts:
        gap = _between(text, start, TENSOR, 1)
        reaches = len(gap) < len(text) - start - 1
        others = [line for line in gap if kind.search(line)]
        if reaches and not others:
            return False
    return True


REASONS: dict[str, Holds] = {
    "a proxy fence before the barrier shows the mbarriers too": _other_fence_shows_barriers,
    "a fence before it shows the mbarriers, and none is made between": _shown_before,
    "no thread has stored to shared memory yet, and the mbarriers are shown": _nothing_to_cover,
    "another barrier of the block is next to it, and nothing made before is used between the two":
        _next_to_another_barrier,
    "since the barrier before only products and copies used shared memory, which every thread "
    "has waited for": _threads_touch_nothing,
    "nothing that another thread has written is used after it": _nothing_follows,
    "the whole block meets there, whatever the number": _whole_block_meets,
    "no product has been issued since all were waited for": _no_product_since_the_wait,
    "only other blocks of the multiprocessor may wait for the permit": _permit_is_for_others,
    "the same barrier is waited for again before anything relies on it": _waited_again,
    "who arrives has stored nothing and read no shared memory since it met the others":
        _arrival_tells_nothing,
    "the fence of the tensormap proxy beside it releases, or acquires": _map_fence_orders,
    "only mbarriers were made before it, which a fence has released": _only_barriers_were_made,
    "no memory is accessed after it: only the end of the blocks waits": _cluster_only_ends,
    "the cluster's barrier releases the mbarriers, and no copy signals them":
        _cluster_shows_barriers,
    "the sources have been read, and nothing uses what the copies write": _stores_were_read,
    "the copy of a tensor map is one operation of the warp": _copy_of_a_map_is_the_warps,
    "only products come before it, which one thread issues in order": _only_own_products_before,
    "another fence of its kind orders the columns beside it, and only others lie between":
        _other_columns_between,
    "the same phase of the same barrier has been waited for before": _waited_before,
    "no store has been issued that it could wait for": _no_store_before,
    "tensor memory is not accessed on one side of it, or another fence stands before the next "
    "access": _tensor_fence_orders_nothing,
}  # fmt: skip
