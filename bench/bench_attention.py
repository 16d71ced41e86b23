"""python bench/bench_attention.py --suite core --peers torch,numpy --threads 2 --json FILE"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.command import main

if __name__ == "__main__":
    raise SystemExit(main())
