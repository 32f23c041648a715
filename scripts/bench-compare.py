#!/usr/bin/env python3
"""Compares two builds: runs a benchmark of each alternately, and compares the rows.

Each COMMAND is a benchmark with its arguments; the script appends --json FILE. For each row, the script prints the median of
each build, and the median of the ratios of neighboring runs with its confidence interval. A row differs if the whole interval
is more than --tolerance from 1; then the exit status is 1.

Example:
  scripts/bench-compare.py "old/linewarden-lab bench auth --runs 3" "target/release/linewarden-lab bench auth --runs 3"
"""

import argparse
import json
import math
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

CONFIDENCE = 0.95
# With fewer pairs of runs, even the interval of all ratios has less confidence.
COUNT_MIN = 6


def rows(command: str) -> dict[str, tuple[float, str]]:
    """Runs a benchmark; returns value and unit of each row by name."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "rows.json"
        subprocess.run([*shlex.split(command), "--json", path], check=True, stdout=subprocess.DEVNULL)
        return {row["name"]: (row["value"], row["unit"]) for row in json.loads(path.read_text())["rows"]}


def interval(values: list[float]) -> tuple[float, float]:
    """Confidence interval of the median, from order statistics: the narrowest symmetric ranks with at least CONFIDENCE."""
    ordered, count = sorted(values), len(values)
    for rank in range(count // 2, 1, -1):
        # The median lies outside the ranks if fewer than `rank` values are on one of its sides.
        outside = 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count
        if 1 - outside >= CONFIDENCE:
            return ordered[rank - 1], ordered[count - rank]
    return ordered[0], ordered[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", metavar="COMMAND", help="benchmark of the earlier build")
    parser.add_argument("after", metavar="COMMAND", help="benchmark of the later build")
    parser.add_argument("--count", type=int, default=7, help="number of runs of each build (default: 7)")
    parser.add_argument("--tolerance", type=float, default=0.03, help="difference that is accepted (default: 0.03)")
    arguments = parser.parse_args()
    if arguments.count < COUNT_MIN:
        parser.error(f"--count must be at least {COUNT_MIN}")

    pairs = []
    for number in range(arguments.count):
        # The order alternates, so that a change of the machine's speed affects both builds.
        first, second = (arguments.before, arguments.after) if number % 2 == 0 else (arguments.after, arguments.before)
        results = [rows(first), rows(second)]
        pairs.append(results if number % 2 == 0 else results[::-1])
        print(f"{number + 1} of {arguments.count} pairs", file=sys.stderr)

    different = 0
    print(f"{'row':52} {'before':>12} {'after':>12} unit       ratio, interval of {CONFIDENCE:.0%}")
    for name, (_, unit) in pairs[0][0].items():
        values = [(before[name][0], after[name][0]) for before, after in pairs if name in before and name in after]
        if not values:
            print(f"{name:52} only before")
            continue
        before, after = (statistics.median(side) for side in zip(*values))
        ratios = [later / earlier for earlier, later in values if earlier]
        if not ratios:
            print(f"{name:52} {before:12.4g} {after:12.4g} {unit}")
            continue
        low, high = interval(ratios)
        is_different = low > 1 + arguments.tolerance or high < 1 - arguments.tolerance
        different += is_different
        ratio = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        print(f"{name:52} {before:12.4g} {after:12.4g} {unit:10} {ratio}{' differs' if is_different else ''}")
    for name in pairs[0][1].keys() - pairs[0][0].keys():
        print(f"{name:52} only after")
    print(f"{different} rows differ by more than {arguments.tolerance:.0%}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
