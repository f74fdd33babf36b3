"""Maps that grow: a Swiss roll and digits in batches, and a row that short-circuits the roll.

Run: python examples/incremental_isomap.py [--out docs/methods/incremental_isomap.png]
Needs the extra isomap.
"""

import argparse
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import MUTED, WARN, new_figure
from sklearn.datasets import load_digits

import sidebayes as sb

SIZES = {"Swiss roll": (100, 250, 600, 1500), "digits": (300, 600, 1000, 1797)}


def rolled(number, seed=0):
    """Rows of a Swiss roll, and how far along it they are."""
    along, across = np.random.default_rng(seed).random((2, number))
    turn = 1.5 * np.pi * (1 + 2 * along)
    return np.column_stack([turn * np.cos(turn), 21 * across, turn * np.sin(turn)]), turn


def grown(x, sizes, batch, **options):
    """Coordinates at some sizes of a map that is given rows in batches, and the map."""
    isomap, found = sb.IncrementalIsomap(**options).fit(x[: sizes[0]]), []
    for size, following in zip(sizes, [*sizes[1:], None], strict=True):
        found.append(isomap.embedding_.copy())
        for low in range(size, following or size, batch):
            isomap.partial_fit(x[low : min(low + batch, following)])
    return found, isomap


def draw_row(axes, maps, colours, name, **style):
    """A panel for each size."""
    for axis, coordinates in zip(axes, maps, strict=True):
        axis.scatter(*coordinates.T, c=colours[: len(coordinates)], s=4, **style)
        axis.set(title=f"{name}, {len(coordinates)} rows", xticks=[], yticks=[])
        axis.set_aspect("equal", adjustable="datalim")


def short_circuited(isomap, x, turn):
    """Add a row between two turns of the roll, ask on which rows the map hangs, and remove it again.

    Returns the bent map, and what moves without each of the first rows, with and without the new one.
    """
    before = isomap.embedding_.copy()
    one = np.argmin(np.abs(turn - 2.5 * np.pi))
    between = (turn[one] + 1.04 * np.pi) / turn[one]
    isomap.partial_fit((x[one] * [between, 1, between])[None])
    bent, with_it = isomap.embedding_.copy(), isomap.short_circuits(6, of="rows")
    print(with_it.to_string(float_format="%.3g"))
    isomap.remove([len(x)])
    change = np.linalg.norm(isomap.embedding_ - before) / np.linalg.norm(before)
    print(
        f"one step after row {len(x)} is removed, coordinates are {change:.1%} from what they were"
    )
    return bent, {"with": with_it, "without": isomap.short_circuits(6, of="rows")}


def draw_shares(axis, found):
    """What moves without each of the first rows."""
    for table, colour in zip(found.values(), (WARN, MUTED), strict=True):
        axis.semilogy(np.arange(1, len(table) + 1), table["moved"], "o-", color=colour)
    axis.legend([f"{name} the row" for name in found], frameon=False, fontsize=8)
    axis.set(title="rows the map hangs on", ylabel="share that moves")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("incremental_isomap.png"))
    options = parser.parse_args()
    x, turn = rolled(1500)
    rolls, isomap = grown(x, SIZES["Swiss roll"], 10, n_neighbors=6)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    maps, _ = grown(digits.data[order], SIZES["digits"], 50, n_neighbors=10)
    bent, found = short_circuited(isomap, x, turn)
    figure, axes = new_figure(13, 5.4, nrows=2, ncols=5)
    draw_row(axes[0, :4], rolls, turn, "Swiss roll", cmap="viridis")
    draw_row(axes[1, :4], maps, digits.target[order], "digits", cmap="tab10")
    draw_row(axes[0, 4:], [bent], np.append(turn, turn.mean()), "short-circuited", cmap="viridis")
    draw_shares(axes[1, 4], found)
    figure.savefig(options.out, dpi=110)


if __name__ == "__main__":
    main()
