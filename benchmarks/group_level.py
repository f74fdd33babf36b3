"""How often the permutation tests of `group_test` reject equal means, where covariances differ.

Normal coordinates of equal means; the variances of the first group are a multiple of the other's. The columns
are the shares of data sets that each statistic rejects at .05.

    python -m benchmarks.group_level
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import pandas as pd

import sidebayes

LEVEL = 0.05


def rejected(
    coordinates: int, sizes: tuple[int, int], ratio: float, *, repeats: int, permutations: int
) -> pd.Series:
    """Share of data sets of equal means whose p-value is at most `LEVEL`, by statistic."""
    labels = np.repeat([0, 1], sizes)
    scale = np.where(labels == 0, np.sqrt(ratio), 1.0)[:, None]
    found = []
    for seed in range(repeats):
        x = scale * np.random.default_rng(seed).normal(size=(len(labels), coordinates))
        test = sidebayes.group_test(x, labels, num_permutations=permutations, seed=seed)
        found.append(test.table["p"] <= LEVEL)
    return pd.DataFrame(found).mean()


def main() -> None:
    """Print the shares, by individuals of the small group per coordinate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--permutations", type=int, default=199)
    given = parser.parse_args()
    warnings.simplefilter("ignore", sidebayes.SideBayesWarning)
    rows = {}
    for ratio in (16.0, 4.0, 2.0):
        for each in (1, 2, 5, 10):
            for coordinates in (4, 8):
                small = each * coordinates
                for large in (small, 3 * small):
                    rows[ratio, each, coordinates, f"{small} and {large}"] = rejected(
                        coordinates, (small, large), ratio, **vars(given)
                    )
    table = pd.DataFrame(rows).T
    table.index.names = ["variances", "per coordinate", "coordinates", "individuals"]
    print(table.to_string(float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
