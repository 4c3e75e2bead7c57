"""For tests of code that must not warn."""

import pytest

# What an earlier test left behind may be collected within this one: open files, and what says so.
SILENT = pytest.mark.filterwarnings(
    "error", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
