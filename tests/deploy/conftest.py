"""Two pods of the Indexed Job, really trained with the manifest's own command: merged by one test, read by another."""

from pathlib import Path

import pytest

from tests.deploy.support import DIGITS, arguments, checkout, manifest
from tests.helpers import OFFLINE, command


@pytest.fixture(scope="session")
def pods(tmp_path_factory) -> Path:
    """A folder as the image's /app, in which the pods of index 0 and 1 trained for one epoch, one after the other."""
    app = checkout(tmp_path_factory.mktemp("pods"))
    for index in ("0", "1"):
        done = command(*arguments(manifest("seeds"), {"JOB_COMPLETION_INDEX": index}), *DIGITS, cwd=app, env=OFFLINE)
        assert done.returncode == 0, done.stderr
    return app
