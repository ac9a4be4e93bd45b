"""The golden fixture: equality, updates, and orphans, each in a suite of its own."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ONE_GOLDEN = "def test_one(golden):\n    golden('text\\n', 'one.txt')\n"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Give a small suite with the fixture, and one test that compares one file."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\ntestpaths = checks\naddopts = -p tests.goldens")
    (pytester.mkdir("checks") / "test_one.py").write_text(ONE_GOLDEN)
    (pytester.path / "tests/golden").mkdir(parents=True)
    return pytester


def write_golden(suite: pytest.Pytester, name: str, text: str) -> Path:
    path = suite.path / "tests/golden" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_an_equal_text_passes(suite: pytest.Pytester) -> None:
    write_golden(suite, "one.txt", "text\n")
    assert suite.runpytest().ret == 0


def test_a_text_that_differs_fails_and_shows_the_difference(suite: pytest.Pytester) -> None:
    write_golden(suite, "one.txt", "old\n")
    result = suite.runpytest()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*one.txt differs*", "*-old", "*+text"])


def test_a_text_that_differs_in_its_line_ends_fails(suite: pytest.Pytester) -> None:
    write_golden(suite, "one.txt", "text\r\n")
    assert suite.runpytest().ret == 1


def test_a_missing_file_fails_and_names_the_option(suite: pytest.Pytester) -> None:
    result = suite.runpytest()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*no golden file one.txt: pytest --update-golden writes it*"])


def test_an_update_writes_the_text(suite: pytest.Pytester) -> None:
    path = write_golden(suite, "one.txt", "old\n")
    assert suite.runpytest("--update-golden").ret == 0
    assert path.read_text() == "text\n"


def test_one_name_for_two_texts_fails_under_an_update_too(suite: pytest.Pytester) -> None:
    (suite.path / "checks/test_two.py").write_text(ONE_GOLDEN.replace("text", "other"))
    result = suite.runpytest("--update-golden")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*one.txt was compared with another text before*"])


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
def test_an_orphan_fails_the_whole_suite(suite: pytest.Pytester, workers: list[str]) -> None:
    write_golden(suite, "one.txt", "text\n")
    write_golden(suite, "errors/old.txt", "nobody reads this\n")
    result = suite.runpytest(*workers)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*orphan golden file errors/old.txt: no test asks for it*"])


@pytest.mark.parametrize("selection", [["checks/test_one.py"], ["-k", "one"]])
def test_an_orphan_does_not_fail_a_part_of_the_suite(
    suite: pytest.Pytester, selection: list[str]
) -> None:
    write_golden(suite, "one.txt", "text\n")
    write_golden(suite, "old.txt", "some other test reads this\n")
    assert suite.runpytest(*selection).ret == 0


def test_files_used_by_workers_are_no_orphans(suite: pytest.Pytester) -> None:
    write_golden(suite, "one.txt", "text\n")
    assert suite.runpytest("-n", "2").ret == 0


def test_an_update_of_the_whole_suite_deletes_orphans(suite: pytest.Pytester) -> None:
    orphan = write_golden(suite, "old.txt", "nobody reads this\n")
    assert suite.runpytest("--update-golden").ret == 0
    assert not orphan.exists()
