"""For tests of code that must not warn."""

import pytest

# Of files: what an earlier test left open may be closed within this one.
SILENT = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
