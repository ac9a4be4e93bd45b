"""What every test may use: the golden files."""

pytest_plugins = ["tests.goldens"]
