"""Odd values in the place of every argument of every public callable: what the library makes of them.

Run from the checkout: python -m benchmarks.bad_input [--only NAME]
One argument at a time is replaced by each odd value of its kind. "Clear" is refused by an error of the
library that names the argument; "handled" gives an answer, and the value is of a kind that the argument's
annotation names; "unclear" is any other error; "silent" gives an answer to a value of another kind.
"""

import argparse
import os
import tempfile
from collections import Counter

from tests.support.fuzz import cases as plain_cases
from tests.support.fuzz.cards import CARD_CASES
from tests.support.fuzz.outcomes import outcome
from tests.support.fuzz.series import SERIES_CASES

CASES = {**plain_cases.CASES, **SERIES_CASES, **CARD_CASES}
COLUMNS = ("clear", "handled", "unclear", "silent")


def tally(name, case):
    """Count the outcomes of a case, and print those that are faults."""
    counts = Counter()
    for argument, values in case.odd.items():
        for value in values:
            found = outcome(name, case.call, case.good | {argument: value})
            word, _, why = found.partition(": ")
            counts[word] += 1
            if why:
                print(f"  {name}({argument}={value!r:.40}) {word}: {why:.140}", flush=True)
    return counts


def main():
    """Try all cases and print one line each, and their sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    wanted = parser.parse_args().only
    os.environ["SIDEBAYES_DATA"] = ""
    total = Counter()
    print(f"{'callable':32}{'tried':>8}" + "".join(f"{word:>9}" for word in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, case in CASES.items():
            if wanted in name:
                found = tally(name, case)
                total += found
                show(name, found)
    show("all", total)


def show(name, counts):
    """Print one line of the table."""
    cells = "".join(f"{counts[word]:9d}" for word in COLUMNS)
    print(f"{name:32}{counts.total():8d}{cells}", flush=True)


if __name__ == "__main__":
    main()
