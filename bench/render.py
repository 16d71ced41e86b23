"""python bench/render.py RESULT.json ...: committed results as the README's Markdown, on stdout."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import results
from bench.report import markdown
from tvm_attention.errors import InvalidValueError


def main(arguments: list[str] | None = None) -> int:
    """Exit status 2 for a file that is no result."""
    parser = argparse.ArgumentParser(prog="render", description="benchmark results as Markdown")
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    try:
        texts = [markdown(results.read(path)) for path in parser.parse_args(arguments).files]
    except InvalidValueError as error:
        print(f"render: {error}", file=sys.stderr)
        return 2
    print("\n".join(texts), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
