"""Control flow on kernel values does what Python does with numbers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frontend.tracing import agrees


def if_chain(n: Any, o: Any) -> None:
    if n < 2:
        x = 1
    elif n < 5:
        x = n
    else:
        x = n * n
    o[0] = x


def one_sided_if(n: Any, o: Any) -> None:
    x = 3
    if n > 4:
        x = n
    o[0] = x


def nested_ifs(n: Any, o: Any) -> None:
    x, y = 1, 2
    if n > 2:
        if n > 5:
            x, y = y, x
        else:
            x = n
        y += 1
    o[0], o[1] = x, y


def conditional_expressions(n: Any, o: Any) -> None:
    o[0] = 1 if n > 2 else 2 if n > 1 else 3
    o[1] = (n if n > 3 else -n) + 1


def short_circuits(n: Any, o: Any) -> None:
    o[0] = 1 if n > 1 and n < 5 else 0
    o[1] = 1 if n < 1 or n > 4 or n == 3 else 0
    o[2] = 1 if not (n > 1 and not n > 6) else 0
    o[3] = n and n + 3
    o[4] = n or 7


def chained_comparisons(n: Any, o: Any) -> None:
    o[0] = 1 if 1 < n <= 4 else 0
    o[1] = 1 if 0 < n < 6 != n else 0
    o[2] = 1 if (m := n + 1) > 2 > m - 5 else 0
    o[3] = m


def for_sums(n: Any, o: Any) -> None:
    total, last = 0, -5
    for i in range(n):
        total += i * i
        last = i
    o[0], o[1] = total, last


def for_with_bounds(n: Any, o: Any) -> None:
    total = 0
    for i in range(1, n, 2):
        total = total * 3 + i
    for i in range(n, 0, -2):
        total = total * 2 - i
    for i in range(4):
        total += i * n
    o[0] = total


def breaks(n: Any, o: Any) -> None:
    x = 0
    for i in range(10):
        if i == n:
            break
        x += i
    else:
        o[1] = 9
    o[0] = x


def continues(n: Any, o: Any) -> None:
    x = 0
    for i in range(8):
        if i % 2 == n % 2:
            continue
        x += i
        if x > 9:
            continue
        x += 1
    o[0] = x


def nested_loops(n: Any, o: Any) -> None:
    x = 0
    for i in range(n):
        for j in range(i):
            if j == 3:
                break
            if (i + j) % 3 == 1:
                continue
            x += i * j + 1
        else:
            x += 100
        if x > 400:
            break
    o[0] = x


def while_loops(n: Any, o: Any) -> None:
    a, b, steps = 0, 1, 0
    while a < n * 10:
        a, b = b, a + b
        steps += 1
        if steps > 6:
            break
    else:
        o[3] = 5
    o[0], o[1], o[2] = a, b, steps


def endless_while(n: Any, o: Any) -> None:
    i = 0
    while True:
        i += 1
        if i * i > n:
            break
        o[1] = i
    o[0] = i


def walrus_in_while(n: Any, o: Any) -> None:
    i = x = 0
    while (x := i * i) < n:
        i += 1
    o[0], o[1] = i, x


def python_while(n: Any, o: Any) -> None:
    i = 0
    while i < 3:
        o[i] = n + i
        i += 1


def helper_returns(n: Any, o: Any) -> Any:
    def f(a: Any) -> Any:
        if a > 5:
            return a * 2
        for i in range(a):
            if i == 2:
                return i + 100
            if i > 2:
                return 0
        return -a

    o[0] = f(n)
    o[1] = f(3)


def returns_from_while(n: Any, o: Any) -> Any:
    def root(x: Any) -> Any:
        i = 0
        while True:
            if i * i >= x:
                return i
            i += 1

    o[0] = root(n)


def early_return_of_kernel(n: Any, o: Any) -> None:
    o[0] = 1
    if n > 3:
        return
    o[1] = 2
    for i in range(3):
        if i == n:
            return
        o[2] = i
    o[3] = 4


def constant_match(n: Any, o: Any) -> None:
    match n:
        case 0:
            o[0] = 10
        case 1 | 2:
            o[0] = 20
        case _ if n > 6:
            o[0] = 30
        case _:
            o[0] = 40


def match_of_structure(n: Any, o: Any) -> None:
    match (n, 3):
        case (a, 3) if a is not None:
            o[0] = a
        case _:
            o[0] = 0


def match_that_leaves(n: Any, o: Any) -> None:
    for i in range(5):
        match i:
            case 3:
                break
            case 1:
                continue
        o[i] = n


def membership(n: Any, o: Any) -> None:
    o[0] = 1 if n in (1, 3, 5) else 0
    o[1] = 1 if n not in [2, 3] else 0


def tuple_targets(n: Any, o: Any) -> None:
    (a, *rest), b = (n, n + 1, n + 2), 4
    for k, (x, y) in enumerate([(a, b), (b, rest[0])]):
        o[k] = x * y


def shared_by_closures(n: Any, o: Any) -> Any:
    total = 0

    def show() -> Any:
        return total * 2

    def add(x: Any) -> None:
        nonlocal total
        total += x

    add(n)
    if n > 2:
        total += 10
    o[0] = show()


def comprehensions(n: Any, o: Any) -> None:
    parts = [n * k if k % 2 else n + k for k in (1, 2, 3)]
    table = {k: v + 0 for k, v in enumerate(parts)}
    o[0] = sum(parts)
    o[1] = table[2]
    o[2] = max(x - 1 for x in parts)
    o[3] = any([n > 3, n == 1])


def builtin_functions(n: Any, o: Any) -> None:
    o[0] = min(n, 3) + max(n, 4, 2) + abs(n - 5)
    o[1] = pow(n, 2) + divmod(n + 7, 3)[0] + divmod(n + 7, 3)[1]
    o[2] = int(n) + round(n) + int(bool(n))
    o[3] = len([n, n])


def annotated_names(n: Any, o: Any) -> None:
    x: int = n
    y: int
    if n > 3:
        y = x + 1
        z: int = y
    else:
        y = z = 0
    o[0] = y + z


def shared_by_annotation_alone(n: Any, o: Any) -> None:
    total: int

    def start(x: Any) -> None:
        nonlocal total
        total = x * 2

    start(n)
    if n > 3:
        total += 1
    o[0] = total


def for_else_return(n: Any, o: Any) -> Any:
    def find(x: Any) -> Any:
        for i in range(6):
            if i * i == x:
                return i
        x += 50
        return x

    o[0] = find(n)


def else_of_loops_returns(n: Any, o: Any) -> Any:
    def find(x: Any) -> Any:
        for i in range(6):
            if i * i == x:
                return i
        else:  # noqa: PLW0120  (Python that people write)
            return -1

    def tried(x: Any) -> Any:
        if x > 6:
            return 60
        while x > 1:
            for k in range(2):
                if k + 2 == x:
                    return k
            x -= 3
        else:  # noqa: PLW0120  (Python that people write)
            return x + 50

    o[0], o[1] = find(n), tried(n)


def else_of_loops_is_skipped(n: Any, o: Any) -> Any:
    def find(x: Any) -> Any:
        for i in range(6):
            if i == x:
                break
        else:
            return -1
        return x * 10

    o[0] = find(n)


def lambdas(n: Any, o: Any) -> None:
    f: Any = lambda a, b=2: a * b if a > 3 else a - b  # noqa: E731
    o[0] = f(n)
    o[1] = f(n, b=n)


def unused_branch_names(n: Any, o: Any) -> None:
    if n > 3:
        unused = n
    else:
        unused = "a text"
        o[1] = len(unused)
    o[0] = 1


def leaving_a_match_on_structure(n: Any, o: Any) -> None:
    def first(key: Any) -> Any:
        for i in (1, 2, 3):
            match key:
                case [x]:
                    return x + n
                case [_, _]:
                    key = (i,)
        return 7

    total = n
    for key in ((1,), 3, (5, 6), "q", 7):
        match key:
            case [_]:
                continue
            case [_, x]:
                total += x
            case str():
                break
            case _:
                total += 1
        total += 10
    o[0], o[1], o[2] = total, first((1, 2)), first("a")


KERNELS = [value for value in list(globals().values()) if getattr(value, "__code__", None)]
KERNELS = [k for k in KERNELS if k.__module__ == __name__]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("n", range(9))
def test_kernel_does_what_python_does(kernel: Any, n: int) -> None:
    agrees(kernel, n)
