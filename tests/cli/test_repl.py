"""`astdsl repl`: kernels typed at a prompt."""

import subprocess
import sys


def type_in(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astdsl.cli.main", "repl"]
    return subprocess.run(command, input=text, capture_output=True, check=False, text=True)


DOUBLE = """\
@kernel
def double(x: In[f32, "N"], o: Out[f32, "N"]):
    o[...] = x[...] {}

"""


def test_a_kernel_is_defined_and_called() -> None:
    done = type_in(DOUBLE.format("* 2") + "print(double(np.ones(4, np.float32)))\n")
    assert done.stdout == "[2. 2. 2. 2.]\n"
    assert done.returncode == 0


def test_a_mistake_is_reported_at_the_line_that_was_typed() -> None:
    done = type_in(DOUBLE.format("+ y") + "double(np.ones(4, np.float32))\nprint('on')\n")
    assert "    o[...] = x[...] + y\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "on\n"


def test_two_kernels_of_one_name_keep_their_texts() -> None:
    call = "print(double(np.ones(1, np.float32)))\n"
    done = type_in(DOUBLE.format("* 2") + call + DOUBLE.format("* 3") + call)
    assert done.stdout == "[2.]\n[3.]\n"


def test_an_exception_shows_pythons_traceback() -> None:
    done = type_in("1 / 0\n")
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_exit_ends_it_with_its_code() -> None:
    assert type_in("raise SystemExit(3)\n").returncode == 3
