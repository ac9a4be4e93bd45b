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
from collections.abc import Callable, Iterator

from tests.emulator.mutants import Mutant

SHARED = re.compile(
    r"(?:ld|st)\.(?:volatile\.|relaxed\.)?shared|bulk_group \[|(?:ld|st)matrix|red\.|atom\."
)
SIGNALS = re.compile(
    r"mbarrier\.(?!init)|^bar\.|cp\.async\.bulk\.(?!wait|commit)|tcgen05\.commit|wgmma\.mma"
)
TENSOR = re.compile(r"tcgen05\.(?:ld|st|mma|cp)\b")
ACCESS = re.compile(rf"{SHARED.pattern}|{SIGNALS.pattern}|{TENSOR.pattern}")
USES = re.compile(rf"{ACCESS.pattern}|mbarrier|tcgen05\.alloc")
STORE = re.compile(r"global\.shared::cta\S*bulk_group \[")
# An ordinary access of memory that other threads may see.
ORDINARY = re.compile(r"\b(?:ld|st)\.(?!param|local)|(?:ld|st)matrix|(?<!\.)\b(?:red|atom)\.")
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
PRODUCT = re.compile(r"wgmma\.mma_async")
PRODUCT_FENCE = re.compile(r"wgmma\.fence")
# Of global memory no reason says anything.
SHARED_FENCE = re.compile(r"fence\.proxy\.async(?!\.global)")
INIT_FENCE = re.compile(r"fence\.mbarrier_init")
LABEL = re.compile(r"^(\$\w+):")
BRANCH = re.compile(r"\bbra(?:\.uni)?\s+(\$\w+);")
NAMED = re.compile(r"\bbar(?:rier)?\.(?!cluster|warp)")
NUMBER = re.compile(rf"{NAMED.pattern}(?:cta\.)?(?:[sa]\S+|red\S+\s+%\w+,)\s+(\d+|%)")
AGREED = re.compile(r"bar\.red\.and\.pred (%\w+), (\d+), \d+, (%\w+);")

Holds = Callable[[list[str], Mutant], bool]


def equivalence(lines: list[str], mutant: Mutant) -> str:
    """Return why a mutant is equivalent, "" if no reason is known."""
    text = _kernel_of([line.strip() for line in lines], mutant.line)
    return next((reason for reason, holds in REASONS.items() if holds(text, mutant)), "")


def _kernel_of(text: list[str], line: int) -> list[str]:
    """Return a text in which the lines of other kernels than that of a line are empty."""
    starts = [at for at, each in enumerate(text) if ".entry" in each or ".func" in each]
    first = max((at for at in starts if at <= line), default=0)
    last = min((at for at in starts if at > line), default=len(text))
    return [each if first <= at < last else "" for at, each in enumerate(text)]


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
    return any(SHARED_FENCE.search(line) for line in rest)


def _nothing_to_cover(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, SHARED_FENCE.pattern):
        return False
    before = text[: mutant.line]
    shown = _between(text, mutant.line, SIGNALS, -1)
    return not _any(before, SHARED) and any("fence.mbarrier_init" in line for line in shown)


def _reads_address(text: list[str], line: str) -> bool:
    allocates = any("tcgen05.alloc" in each for each in text)
    return allocates and bool(re.match(r"ld\.shared\.b32\s+%r\d+, \[smem", line))


def _shown_before(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"(?:@!?%?\w+ )?fence\.mbarrier_init"):
        return False
    before = [text[i] for i in reached(text, mutant.line, -1, INIT_FENCE)]
    return _any(before, INIT_FENCE) and not any("mbarrier.init" in line for line in before)


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


def _registers_are_fenced(text: list[str], mutant: Mutant) -> bool:
    """Say whether each product behind a fence has another, with its registers left alone since.

    Products of one shape may follow each other on one accumulator (PTX ISA 9.7.15.7.1).
    """
    if not _is(mutant, r"wgmma\.fence"):
        return False
    rest = [*text[: mutant.line], "", *text[mutant.line + 1 :]]
    after = reached(rest, mutant.line, 1, PRODUCT_FENCE)
    return all(_is_fenced(rest, at) for at in after if PRODUCT.search(rest[at]))


def _is_fenced(text: list[str], product: int) -> bool:
    """Say whether on each way to a product a fence comes after what else uses its registers."""
    accumulator, factor = _product_registers(text[product])
    for at in reached(text, product, -1, PRODUCT_FENCE):
        line = text[at]
        if ".entry" in line:
            return False
        if PRODUCT.search(line):
            other, read = _product_registers(line)
            used = (set() if other == accumulator else other) | (read & accumulator)
        else:
            used = set(re.findall(r"%\w+", line))
        if used & (accumulator | factor):
            return False
    return True


def _product_registers(line: str) -> tuple[set[str], set[str]]:
    """Return the registers of a product's accumulator, and of its factor if that is in some."""
    groups = re.findall(r"\{([^}]*)\}", line)
    accumulator, *factors = (set(re.findall(r"%\w+", group)) for group in groups)
    return accumulator, set().union(*factors)


def _registers_are_its_own(text: list[str], mutant: Mutant) -> bool:
    """Say whether a warpgroup that asks for registers neither gives some back nor is waited for."""
    if not _is(mutant, r"setmaxnreg\.inc"):
        return False
    return not any("setmaxnreg" in text[at] for at in reached(text, mutant.line, 1))


def _permit_is_for_others(text: list[str], mutant: Mutant) -> bool:
    return _is(mutant, r"(?:@!?%?\w+ )?tcgen05\.relinquish_alloc_permit")


def _waited_again(text: list[str], mutant: Mutant) -> bool:
    """Say whether the same barrier is waited for again before anything relies on it.

    In the place of one that is deleted stands the answer that it has passed.
    """
    mine = re.search(r"mbarrier\.test_wait\S* \S+, (\[%\w+\])", mutant.before)
    if not mine or mutant.change not in ("deleted", "relaxed"):
        return False
    again = re.compile(rf"mbarrier\.try_wait\S* \S+, {re.escape(mine[1])}")
    after = [text[at] for at in reached(text, mutant.line, 1, again)]
    return _any(after, again) and not any(ORDINARY.search(line) for line in after)


def _seen_by_a_test(text: list[str], mutant: Mutant) -> bool:
    """Say whether a test of the same phase has said yes to everybody who comes to a wait."""
    mine = re.search(r"mbarrier\.try_wait\.parity\S* \w+, \[(%\w+)\], (%?\w+);", mutant.before)
    if not mine or mutant.change not in ("deleted", "relaxed"):
        return False
    address, parity = mine.groups()
    test = re.compile(rf"mbarrier\.test_wait\.parity\.shared\S* (%\w+), \[{address}\], (%?\w+);")
    before = reached(text, mutant.line, -1, test)
    asked = {at: found for at in before if (found := test.search(text[at]))}
    if any(".entry" in text[at] for at in before) or len(_writers(text, address)) != 1:
        return False
    return bool(asked) and all(
        _number(text, found[2]) == _number(text, parity) != ""
        and mutant.line not in reached(_where_no(text, at, found[1]), at, 1, test)
        for at, found in asked.items()
    )


def _where_no(text: list[str], test: int, answer: str) -> list[str]:
    """Return the text with the branches that those take to whom a test says no.

    What they agree behind it, before any branch, is then no for all of them.
    """
    no = {answer}
    for line in _between(text, test, re.compile(f"{BRANCH.pattern}|{LABEL.pattern}"), 1):
        agreed = AGREED.search(line)
        if agreed and agreed[3] in no:
            no.add(agreed[1])
    others = (line for name in no for line in _writers(text, name))
    if any("test_wait" not in line and not AGREED.search(line) for line in others):
        return text
    names = "|".join(map(re.escape, no))
    never, always = re.compile(rf"@({names}) bra"), re.compile(rf"@!({names}) bra")
    return ["" if never.match(line) else always.sub("bra", line) for line in text]


def _writers(text: list[str], register: str) -> list[str]:
    """Return the instructions whose first operand a register is."""
    writes = re.compile(rf"^(?:@!?%?\w+ )?[a-z][\w.:]*\s+{re.escape(register)}[,|]")
    return [line for line in text if writes.match(line)]


def _number(text: list[str], operand: str) -> str:
    """Return an operand's number, "" where it is not one alone."""
    if not operand.startswith("%"):
        return operand
    found = {re.sub(r".*,\s*|;", "", line) for line in _writers(text, operand)}
    number = found.pop() if len(found) == 1 else ""
    return number if number.isdecimal() else ""


def _no_store_before(text: list[str], mutant: Mutant) -> bool:
    if not re.match(r"cp\.async\.bulk\.wait_group\.read", mutant.before):
        return False
    before = [text[at] for at in reached(text, mutant.line, -1)]
    return not _any(before, BULK_STORE) and _any(text, STORE)


def _tensor_fence_orders_nothing(text: list[str], mutant: Mutant) -> bool:
    if not _is(mutant, r"tcgen05\.fence"):
        return False
    starts = [mutant.line, *_returns(text, mutant.line)]
    # What does not come after it in this thread may come before it in another.
    later = reached(text, mutant.line, 1)
    if len(starts) == 1 and not any(
        TENSOR.search(line) for at, line in enumerate(text) if at not in later
    ):
        return True
    kind = re.compile(re.escape(mutant.before.rstrip(";")))
    for start in starts:
        gap = _between(text, start, TENSOR, 1)
        reaches = len(gap) < len(text) - start - 1
        others = [line for line in gap if kind.search(line)]
        if reaches and not others:
            return False
    return True


def _is_first_barrier(text: list[str], mutant: Mutant) -> bool:
    """Say whether all threads meet there before any of them uses a barrier."""
    if not _is(mutant, r"bar\.sync \d+, \d+;", "other barrier"):
        return False
    before = [text[at] for at in reached(text, mutant.line, -1)]
    return mutant.before.endswith(f", {_threads(text)};") and not _any(before, NAMED)


def _nobody_names_that_barrier(text: list[str], mutant: Mutant) -> bool:
    """Say whether what threads agree at gets the number of a barrier that is not used.

    Where they did not meet at the same instruction, the mutant's runs do not end.
    """
    agreed = AGREED.search(mutant.before)
    if not agreed or mutant.change != "other barrier":
        return False
    used = [NUMBER.search(line) for line in text if NAMED.search(line)]
    return all(each and each[1] not in (str(int(agreed[2]) + 1), "%") for each in used)


def _all_meet_everywhere(text: list[str], mutant: Mutant) -> bool:
    """Say whether each barrier is one of all threads, so that no phase of any can mix.

    Where threads did not meet at the same instruction, the mutant's runs do not end.
    """
    if not _is(mutant, r"bar\.sync", "other barrier"):
        return False
    threads = _threads(text)
    barriers = [line for line in text if NAMED.search(line)]
    return all(re.match(rf"bar\.sync \d+, {threads};", line) for line in barriers)


def _threads(text: list[str]) -> str:
    (threads,) = {m[1] for line in text if (m := re.match(r"\.maxntid (\d+)", line))} or {""}
    return threads


REASONS: dict[str, Holds] = {
    "every barrier of the kernel is one of all its threads": _all_meet_everywhere,
    "it is the first barrier that any thread comes to, and one of all": _is_first_barrier,
    "no other instruction names the barrier that it gets": _nobody_names_that_barrier,
    "a proxy fence before the barrier shows the mbarriers too": _other_fence_shows_barriers,
    "a fence before it shows the mbarriers, and none is made between": _shown_before,
    "no thread has stored to shared memory yet, and the mbarriers are shown": _nothing_to_cover,
    "another fence stands before each product, and nothing uses its registers since":
        _registers_are_fenced,
    "more registers change no value, and nobody waits for those of a warpgroup that asks":
        _registers_are_its_own,
    "only other blocks of the multiprocessor may wait for the permit": _permit_is_for_others,
    "the same barrier is waited for again before anything relies on it": _waited_again,
    "a test of the same phase has said yes to everybody who comes there": _seen_by_a_test,
    "who arrives has stored nothing and read no shared memory since it met the others":
        _arrival_tells_nothing,
    "the fence of the tensormap proxy beside it releases, or acquires": _map_fence_orders,
    "only mbarriers were made before it, which a fence has released": _only_barriers_were_made,
    "no memory is accessed after it: only the end of the blocks waits": _cluster_only_ends,
    "the cluster's barrier releases the mbarriers, and no copy signals them":
        _cluster_shows_barriers,
    "the sources have been read, and nothing uses what the copies write": _stores_were_read,
    "the copy of a tensor map is one operation of the warp": _copy_of_a_map_is_the_warps,
    "no store has been issued that it could wait for": _no_store_before,
    "tensor memory is not accessed on one side of it, or another fence stands before the next "
    "access": _tensor_fence_orders_nothing,
}  # fmt: skip
