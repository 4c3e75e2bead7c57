"""python main.py fit --config configs/res20.yaml (see --help): the command `skipscope`, from a checkout."""

import sys

from skipscope import main

if __name__ == "__main__":
    sys.exit(main())
