"""``python -m skipscope COMMAND``, and the file that `reproduce` runs."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if sys.path and Path(sys.path[0]).resolve() == HERE:  # run as a file: our `callbacks` would be the one beside it
    sys.path[0] = str(HERE.parent)

from skipscope import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
