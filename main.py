"""SkipScope's command line: python main.py fit --config configs/res20.yaml (see --help)."""

import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> int:
    # PyPI's lightning-app brings another package of our name: say so instead of running it.
    found = Path(find_spec("lightning_app").origin or "").resolve().parent
    if found.parent != Path(__file__).resolve().parent:
        print(f"error: `lightning_app` is {found}, not SkipScope's own.", file=sys.stderr)
        print("       Uninstall lightning-app, or run main.py from the checkout.", file=sys.stderr)
        return 2
    from lightning_app.cli import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
