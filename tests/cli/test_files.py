"""Finding the kernels of a file."""

from pathlib import Path

import pytest

from astdsl.cli.files import find_kernel, kernels_of, load_file, split_place
from astdsl.errors import BadCommand

KERNELS = str(Path(__file__).with_name("kernels.py"))


def test_a_kernel_is_found_by_its_name() -> None:
    assert find_kernel(f"{KERNELS}:scale").__name__ == "scale"


def test_the_only_kernel_of_a_file_needs_no_name(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text("from astdsl import kernel\n\n@kernel\ndef only():\n    pass\n")
    assert find_kernel(str(file)).__name__ == "only"


def test_several_kernels_are_listed_where_none_is_named() -> None:
    with pytest.raises(BadCommand, match="several kernels: add, scale, fixed, ") as caught:
        find_kernel(KERNELS)
    assert caught.value.help == f"name one: `{KERNELS}:add`"


CLASSES = """
from types import SimpleNamespace

from astdsl import In, Out, f32, kernel


class Steps:
    @staticmethod
    @kernel
    def static(x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] + 1

    @kernel
    @classmethod
    def of_class(cls, x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] + 2

    @kernel
    def method(self, x: In[f32, "8"], o: Out[f32, "8"]):
        o[...] = x[...] + 3

    class Inner:
        @kernel
        def deep(x: In[f32, "8"], o: Out[f32, "8"]):
            o[...] = x[...] + 4

    def plain(self):
        pass


made = SimpleNamespace(steps=Steps(), kernel=Steps.static)
"""


@pytest.fixture(name="classes")
def _classes(tmp_path: Path) -> str:
    file = tmp_path / "classes.py"
    file.write_text(CLASSES)
    return str(file)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("Steps.static", "static"), ("Steps.of_class", "of_class"), ("Steps.Inner.deep", "deep"),
        ("made.steps.method", "method"), ("made.kernel", "static"),
    ],
)  # fmt: skip
def test_a_dotted_name_leads_into_classes_and_objects(classes: str, name: str, kernel: str) -> None:
    found = find_kernel(f"{classes}:{name}")
    assert found.__name__ == kernel
    assert [p.name for p in found.signature.params] == ["x", "o"]


def test_kernels_of_classes_are_listed(classes: str) -> None:
    with pytest.raises(BadCommand, match=r"several kernels: Steps\.static, Steps\.of_class\n"):
        find_kernel(classes)


@pytest.mark.parametrize(
    ("name", "message", "help"),
    [
        ("Steps.statik", "`Steps` has no `statik`", "did you mean `static`?"),
        ("Step.static", "has no `Step`", "did you mean `Steps`?"),
        ("Steps.Inner.far", "`Steps.Inner` has no `far`", "it has Steps.static, Steps.of_class"),
        ("Steps.plain", "`Steps.plain` is a function, not a kernel", "put `@kernel` before"),
        ("Steps.method", "`Steps.method` is a method", "made.method"),
        ("statik", "has no kernel `statik`", "it has Steps.static, Steps.of_class"),
    ],
)
def test_a_dotted_name_that_leads_nowhere_is_refused(
    classes: str, name: str, message: str, help: str
) -> None:
    with pytest.raises(BadCommand) as caught:
        find_kernel(f"{classes}:{name}")
    assert message in caught.value.message
    assert help in caught.value.help


def test_a_misspelt_kernel_is_hinted_at() -> None:
    with pytest.raises(BadCommand, match="did you mean `scale`"):
        find_kernel(f"{KERNELS}:scales")


def test_a_file_without_kernels_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "none.py"
    file.write_text("x = 1\n")
    with pytest.raises(BadCommand, match="has no kernel"):
        find_kernel(str(file))


@pytest.mark.parametrize("name", ["nowhere.py", "."])
def test_what_is_no_file_is_refused(name: str) -> None:
    with pytest.raises(BadCommand, match="there is no file"):
        find_kernel(name)


def test_a_file_that_is_not_pythons_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "kernel.txt"
    file.write_text("")
    with pytest.raises(BadCommand, match="not a Python file"):
        find_kernel(str(file))


def test_kernels_that_a_file_imports_are_not_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mixed.py"
    file.write_text(
        "from astdsl import kernel\nfrom tests.cli.kernels import add\n\n"
        "@kernel\ndef own():\n    pass\n"
    )
    assert list(kernels_of(load_file(str(file)))) == ["own"]


def test_a_colon_in_the_path_of_a_file_is_no_kernels(tmp_path: Path) -> None:
    file = tmp_path / "a:b"
    file.write_text("")
    assert split_place(str(file)) == (str(file), "")
    assert split_place("a.py:b") == ("a.py", "b")
    assert split_place("a.py:B.c.d") == ("a.py", "B.c.d")
    assert split_place("a:b.py") == ("a:b.py", "")
    assert split_place("a:b/c.py") == ("a:b/c.py", "")
