"""Shapes: read landmarks, find one that was reflected, align, and test whether groups differ.

Run: python examples/shapes.py [--out docs/shapes.png]
The shapes are outlines of the digit 8 by 13 hands, from scikit-learn's digits. Rows of that file look like
those near them: have the eights of its first half the mean shape of those of its second?
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
from sidebayes.diagnostics.pictures.colours import FAINT, INK, cluster_colours, new_figure

import sidebayes as sb

GROUPS = ("first half", "second half")


def write(path):
    """Save the outlines as a TPS file, in which one is the mirror image of what was written."""
    marks = sb.digit_outlines([8], num_points=24)
    x = marks.to_array()
    x[20] *= [-1, 1]
    sb.Landmarks.from_array(x, subjects=marks.names).write_tps(path)


def read(path):
    """Read the file, and mend what the warnings name; returns the landmarks and the warnings."""
    marks = sb.read_landmarks(path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        marks.aligned()
    x = marks.to_array()
    x[20] *= [-1, 1]
    # two tilted eights are topmost elsewhere, so that their outlines begin there
    kept = ~np.isin(marks.names, [482, 1583])
    half = np.array(GROUPS)[np.arange(len(x)) * 2 // len(x)]
    marks = sb.Landmarks.from_array(x, subjects=marks.names, covariates={"half": half})
    return marks.take(kept), [str(one.message) for one in said]


def draw(marks, test, out, *, factor=4):
    """Draw shapes on their mean, how the groups' means differ, and the values that labelings give."""
    aligned = marks.aligned()
    figure, (left, middle, right) = new_figure(10.0, 3.6, ncols=3)
    closed = np.concatenate([aligned.shapes, aligned.shapes[:, :1]], axis=1)
    left.plot(*np.moveaxis(closed, 2, 0).swapaxes(1, 2), color=FAINT, lw=0.5)
    left.plot(*np.concatenate([aligned.mean, aligned.mean[:1]]).T, color=INK, lw=1.5)
    left.set_title(f"{len(marks)} shapes and their mean", size=9)
    for group, colour in zip(GROUPS, cluster_colours(2), strict=True):
        mean = aligned.shapes[(marks.covariates["half"] == group).to_numpy()].mean(axis=0)
        apart = aligned.mean + factor * (mean - aligned.mean)
        middle.plot(*np.concatenate([apart, apart[:1]]).T, color=colour, lw=1.5, label=group)
    middle.legend(
        fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, -0.12), ncols=2
    )
    middle.set_title(f"means of groups, {factor} times as far apart", size=9)
    for axis in (left, middle):
        axis.set_aspect("equal")
        axis.set_axis_off()
    right.hist(test.distribution["goodall"], bins=40, color=FAINT)
    row = test.table.loc["goodall"]
    right.axvline(row["value"], color=cluster_colours(2)[0])
    right.set_xlabel("Goodall's F")
    right.set_ylabel("labelings")
    right.set_title(f"p = {row['p']:.4f} ± {row['error']:.4f}", size=9)
    figure.savefig(out, dpi=120)


def main(out):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eights.tps"
        write(path)
        marks, said = read(path)
    print(*said, sep="\n")
    print(marks)
    print(marks.aligned())
    test = sb.group_test(marks, "half")
    print(test)
    draw(marks, test, out)
    print(f"picture: {out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="shapes.png")
    main(parser.parse_args().out)
