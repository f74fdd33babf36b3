"""Picture of the saliencies of features, with intervals, beside the number of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..features import salient_features
from ..fitted import Fitted
from .colours import CHAINS, FAINT, INK, MUTED, as_label, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_features"]

_MOST = 60
"""Features that are drawn; of more, those of largest saliency."""

_LONGEST = 22


def plot_features(fit: Fitted) -> Figure:
    """Bars of saliencies with 95 % intervals, and the probability of each number of clusters.

    At most 60 features are drawn, those of largest saliency. Features whose saliency is zero or one of a
    point estimate were taken out, or are relevant throughout.

    Parameters
    ----------
    fit : Fit
        Whose model has saliencies.
    """
    found = salient_features(fit.tree)
    frame, number = found.frame, found.num_clusters
    if len(frame) > _MOST:
        frame = frame.loc[frame["saliency"].nlargest(_MOST).index]
    several = len(number) > 1
    height = float(np.clip(1.1 + 0.2 * len(frame), 2.4, 10.0))
    figure, axes = new_figure(
        7.4 if several else 5.6,
        height,
        ncols=1 + several,
        squeeze=False,
        width_ratios=(2.6, 1) if several else (1,),
    )
    left, place = axes[0, 0], np.arange(len(frame))
    left.barh(place, frame["saliency"], color=CHAINS[0], height=0.66, alpha=0.85)
    known = frame["lower"].notna().to_numpy()
    left.hlines(place[known], frame["lower"][known], frame["upper"][known], color=INK, lw=1.6)
    left.axvline(0.5, color=MUTED, lw=0.8, ls=":")
    names = [str(name) for name in frame.index]
    short = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in names]
    left.set(yticks=place, yticklabels=[as_label(name) for name in short], xlim=(0, 1.02))
    left.set(xlabel="saliency", ylim=(len(frame) - 0.4, -0.6))
    if several:
        right = axes[0, 1]
        right.bar(number.index.to_numpy(), number.to_numpy(), color=FAINT, width=0.7)
        right.set(xlabel="number of clusters", ylabel="probability", ylim=(0, 1))
        right.set_xticks(number.index.to_numpy())
    else:
        left.set_title(f"{found.likeliest} clusters", fontsize=9, loc="left")
    return figure
