"""All benchmarks of speed, one after the other: python -m benchmarks --root data [--rounds 7]. Each is a command, too."""

import subprocess
import sys

for name in ("data", "measures", "interlayer", "hessian", "training", "seeds", "ensembles"):
    print(f"\n== {name}", flush=True)
    subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=True)
