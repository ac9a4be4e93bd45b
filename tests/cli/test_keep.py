"""`--keep DIR`: every stage as a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import astdsl
from astdsl.cli.keep import FILES, SAVED
from astdsl.cli.main import main

KERNELS = str(Path(__file__).with_name("kernels.py"))


@pytest.mark.parametrize("command", ["dump", "run"])
def test_every_stage_is_kept(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    assert main([command, f"{KERNELS}:fixed", "--keep", str(folder)]) == 0
    names = {path.name for path in folder.iterdir()}
    assert names == {f"fixed-sm_90a{suffix}" for suffix in [*FILES, SAVED]}
    assert ".entry fixed" in (folder / "fixed-sm_90a.ptx").read_text()
    assert (folder / "fixed-sm_90a.cubin").read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("command", ["check", "explain"])
def test_what_would_keep_nothing_does_not_take_the_option(command: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, f"{KERNELS}:fixed", "--keep", str(tmp_path)])


def test_a_kept_kernel_is_loaded(tmp_path: Path) -> None:
    main(["dump", f"{KERNELS}:fixed", "--keep", str(tmp_path)])
    loaded: Any = astdsl.load(tmp_path / "fixed-sm_90a.zip")
    x = np.ones((8, 16), np.int32)
    with astdsl.device("emulator"):
        found = loaded(x)
    with astdsl.device("reference"):
        np.testing.assert_array_equal(found, loaded(x))


def test_a_folder_that_cannot_be_made_is_a_wrong_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["dump", f"{KERNELS}:fixed", "--keep", str(tmp_path / "file")]) == 2
    assert "nothing can be kept in" in capsys.readouterr().err
