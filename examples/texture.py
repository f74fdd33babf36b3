"""Texture segmentation by continuity: blocks of an image, softly linked to their four neighbours.

After Lu (2008), section 2.7.2, experiment 4, on simulated textures. The grid of links is far too
wide to sum labels out exactly, so mean field and Gibbs sampling stand in, side by side.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter, rotate
from scipy.optimize import linear_sum_assignment
from sidebayes.diagnostics.pictures.colours import INK, MUTED, cluster_colours, new_figure
from sidebayes.diagnostics.trust.scores import accuracy, score_labels
from sklearn.metrics.cluster import contingency_matrix

import sidebayes

BLOCK = 7
GRAINS = ((0, (0.7, 2.2)), (50, (0.7, 2.2)), (110, (0.7, 2.2)), (0, (1.1, 1.1)))
"""Angle in degrees, and standard deviations in pixels across and along the grain, a texture."""


@dataclass(frozen=True)
class Mosaic:
    """An image of several textures, and the texture of each of its blocks."""

    image: np.ndarray
    labels: np.ndarray

    @property
    def shape(self):
        """Height and width in blocks."""
        return self.labels.shape

    def features(self):
        """Log mean squared difference of neighbouring pixels in four directions, one row per block."""
        image = np.pad(self.image, 1, mode="reflect")
        centre = image[1:-1, 1:-1]
        steps = ((1, 2), (2, 1), (2, 2), (2, 0))
        height, width = centre.shape
        squares = [(image[i : i + height, j : j + width] - centre) ** 2 for i, j in steps]
        blocks = np.reshape(squares, (len(steps), height // BLOCK, BLOCK, width // BLOCK, BLOCK))
        return np.log(blocks.mean(axis=(2, 4))).reshape(len(steps), -1).T


def simulate_mosaic(size, seed):
    """Random regions, each filled with filtered noise of its own grain.

    Parameters
    ----------
    size : int
        Blocks along an edge.
    seed : int
    """
    rng = np.random.default_rng(seed)
    edge = size * BLOCK
    fields = [gaussian_filter(rng.normal(size=(edge, edge)), edge / 7) for _ in GRAINS]
    region = np.argmax([field / field.std() for field in fields], axis=0)
    image = np.choose(region, [_texture(rng, edge, *grain) for grain in GRAINS])
    middle = slice(BLOCK // 2, None, BLOCK)
    return Mosaic(image, region[middle, middle])


def _texture(rng, edge, angle, scales):
    margin = edge // 2
    noise = gaussian_filter(rng.normal(size=(edge + 2 * margin,) * 2), scales)
    turned = rotate(noise, angle, reshape=False)[margin:-margin, margin:-margin]
    return turned / turned.std()


def segment(mosaic, weight, *, num_restarts=3):
    """Fit the plain mixture, then the linked one from where it ended, by both approximations.

    Parameters
    ----------
    mosaic : Mosaic
    weight : float
        Log-odds that neighbouring blocks are of one texture.
    num_restarts : int
        Of the plain mixture.

    Returns
    -------
    dict of str to Fit
    """
    x = mosaic.features()
    links = sidebayes.Links.from_grid(mosaic.shape, weight)
    engine = sidebayes.EM(num_restarts=num_restarts, tol=1e-5)
    shared = {"num_clusters": len(GRAINS), "truth": mosaic.labels.ravel(), "engine": engine}
    plain = sidebayes.fit("gmm", x, **shared)
    shared |= {"init": plain, "weights": "uniform"}  # the grid's partition function is out of reach
    linked = {
        name: sidebayes.fit("ppc", x, links, inference=name, **shared)
        for name in ("mean_field", "gibbs_labels")
    }
    return {"gmm": plain, **linked}


def draw(mosaic, fits, path):
    """Draw image, truth, segmentations and the uncertainty that Gibbs sampling leaves."""
    figure, axes = new_figure(10.5, 7.6, nrows=2, ncols=3)
    colours = cluster_colours(len(GRAINS))
    truth = mosaic.labels.ravel()
    _show(axes[0, 0], mosaic.image, "image", cmap="gray", vmin=-2.5, vmax=2.5)
    _show(axes[0, 1], colours[mosaic.labels], f"truth, in {BLOCK} by {BLOCK} pixel blocks")
    titles = {
        "gmm": "no links",
        "mean_field": "linked, mean field",
        "gibbs_labels": "linked, Gibbs",
    }
    for axis, (name, fit) in zip((axes[0, 2], *axes[1, :2]), fits.items(), strict=True):
        labels = _renumber(truth, fit.labels())
        title = f"{titles[name]}: {accuracy(truth, labels):.1%} right"
        _show(axis, colours[labels].reshape(*mosaic.shape, 3), title)
    doubt = 1 - fits["gibbs_labels"].responsibilities().max(axis=1).reshape(mosaic.shape)
    last = axes[1, 2]
    shown = _show(
        last, doubt, "probability of another texture, Gibbs", cmap="magma_r", vmin=0, vmax=0.6
    )
    bar = figure.colorbar(
        shown, cax=last.inset_axes((0.03, -0.07, 0.94, 0.03)), orientation="horizontal"
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=INK)
    figure.savefig(path, dpi=150)


def _show(axis, picture, title, **options):
    axis.set_title(title, fontsize=10, color=INK, loc="left")
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set(visible=True, color=MUTED, linewidth=0.6)
    return axis.imshow(picture, interpolation="nearest", **options)


def _renumber(truth, labels):
    """Give every cluster the number of the class it matches."""
    classes, clusters = linear_sum_assignment(-contingency_matrix(truth, labels))
    number = np.empty(len(GRAINS), int)
    number[np.unique(labels)[clusters]] = classes
    return number[labels]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("texture.png"))
    parser.add_argument("--size", type=int, default=40, help="blocks along an edge")
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()

    mosaic = simulate_mosaic(options.size, options.seed)
    other = simulate_mosaic(options.size, options.seed + 1)
    neighbours = sidebayes.Links.from_grid(other.shape, 1.0).pairs
    rate = sidebayes.estimate_flip_rate(neighbours, other.labels.ravel())
    weight = float(sidebayes.flip_rate_weight(rate))
    print(f"neighbours differ in {rate:.1%} of another, labelled image: link weight {weight:.2f}")

    began = time.perf_counter()
    fits = segment(mosaic, weight)
    print(f"{'':12}{'ARI':>8}{'accuracy':>10}{'seconds':>9}")
    for name, fit in fits.items():
        scores = score_labels(mosaic.labels.ravel(), fit.labels())
        seconds = sum(fit.seconds.values())
        print(f"{name:12}{scores['ari']:8.3f}{scores['accuracy']:10.1%}{seconds:9.1f}")
    agreement = accuracy(fits["mean_field"].labels(), fits["gibbs_labels"].labels())
    print(f"mean field and Gibbs agree on {agreement:.1%} of the blocks")
    draw(mosaic, fits, options.output)
    print(f"{time.perf_counter() - began:.0f} s in all; picture in {options.output}")


if __name__ == "__main__":
    main()
