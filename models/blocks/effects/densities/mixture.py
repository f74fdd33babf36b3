"""Outcomes of subjects in latent classes, each class a linear mixed model."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.typing import ArrayLike
from numpyro.distributions import constraints

from ...collapsed import Fitted, NamedArray
from ...mixtures.finite_mixture import FiniteMixture
from ...mixtures.linked_categorical import LinkedCategorical
from ...side_information.groups import Groups
from .marginal import effect_factors
from .random_effects import log_integrals, moments, named_effects
from .sums import RowSums, group_sums

__all__ = ["EffectsMixture", "LabelsAndEffects"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class LabelsAndEffects(NamedTuple):
    """Latent variables: ``labels`` (num_groups,), and whitened ``effects`` (num_groups, num_effects)."""

    labels: Array
    effects: Array


class EffectsMixture(FiniteMixture):
    r"""Outcomes of a long table, with the labels and the random effects of its groups integrated out.

    Group g, a subject, has a label, and in class k its outcomes are those of a linear mixed model,

    .. math:: \log p(y) = \log \sum_z P(z) \prod_g p_{z_g}(y_g), \qquad
              p_k(y_g) = N(X_g \beta_k, Z_g T_k T_k^\top Z_g^\top + \mathrm{diag}(\sigma_{kg}^2)),

    with a law of the labels P in which links tie groups (Lu 2008, section 7.4 and eq. 2.10). The
    effects of a group are integrated out in closed form for each class, by `RandomEffects`; what
    remains are log-factors of its label, and the labels are summed out as in every `FiniteMixture`.
    Everything is computed from sums over the rows of each group, which depend on no parameter.

    The latent variables are the labels and, given these, the effects whitened by their own class:
    :math:`b_g = T_{z_g} u_g`.

    Parameters
    ----------
    labels : LinkedCategorical
        Labels of the groups.
    fixed : array_like, shape (num_rows, num_terms)
        Columns X of the fixed effects.
    coefficients : array_like, shape (num_clusters, num_terms)
        Fixed effects :math:`\beta_k`.
    random : array_like, shape (num_rows, num_effects)
        Columns Z of the random effects. Kept as ``design``.
    groups : Groups
    scale_tril : array_like, shape (num_clusters, num_effects, num_effects)
        Lower triangular factors T of the covariances of the effects.
    noise : array_like, shape (), (num_clusters, 1) or (num_clusters, num_outputs)
        Standard deviation of all outcomes, or one per class, or one per output in each class.
    outputs : array_like, shape (num_rows, num_outputs), optional
        Indicators of the output that each row measures; None where there is one only.
    log_side : Array, shape (num_groups, num_clusters), optional
        Further log-factors of the labels, such as those of known classes.

    Raises
    ------
    TypeError
        If `labels` are not a LinkedCategorical.
    ValueError
        If shapes disagree, or a row belongs to no group. The latter cannot be detected in compiled
        code that takes the groups as an argument.

    References
    ----------
    Lu (2008), section 7.4 and eq. 8.16. Proust-Lima, Philipps and Liquet (2017), J. Stat. Softw. 78(2),
    doi:10.18637/jss.v078.i02, for classes whose fixed effects, covariances or noise are in part shared.
    """

    groups: Groups
    pytree_data_fields: ClassVar[tuple[str, ...]] = (
        "labels",
        "groups",
        "log_side",
        "fixed",
        "coefficients",
        "design",
        "scale_tril",
        "noise",
        "outputs",
    )

    def __init__(
        self,
        labels: LinkedCategorical,
        fixed: ArrayLike,
        coefficients: ArrayLike,
        random: ArrayLike,
        groups: Groups,
        *,
        scale_tril: ArrayLike,
        noise: ArrayLike,
        outputs: ArrayLike | None = None,
        log_side: Array | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(labels, LinkedCategorical):
            raise TypeError(
                f"labels is a {type(labels).__name__}; expected a LinkedCategorical over the groups"
            )
        self.labels, self.groups, self.log_side = labels, groups, log_side
        self.fixed, self.design = jnp.asarray(fixed), jnp.asarray(random)
        self.coefficients, self.scale_tril = jnp.asarray(coefficients), jnp.asarray(scale_tril)
        self.outputs = None if outputs is None else jnp.asarray(outputs)
        self.noise = jnp.asarray(noise)
        if self.noise.shape in ((), (self.num_clusters, 1)):
            size = 1 if self.outputs is None else self.outputs.shape[1]
            self.noise = jnp.broadcast_to(self.noise, (self.num_clusters, size))
        self._check_shapes()
        super().__init__(event_shape=(len(self.fixed),), validate_args=validate_args)

    def _check_shapes(self) -> None:
        num_clusters, num_rows = self.num_clusters, len(self.fixed)
        num_terms, num_effects = self.fixed.shape[1], self.design.shape[1]
        num_outputs = 1 if self.outputs is None else self.outputs.shape[1]
        for name, wanted in (
            ("design", (num_rows, num_effects)),
            ("coefficients", (num_clusters, num_terms)),
            ("scale_tril", (num_clusters, num_effects, num_effects)),
            ("noise", (num_clusters, num_outputs)),
        ):
            if getattr(self, name).shape != wanted:
                shape = getattr(self, name).shape
                raise ValueError(f"{name} has shape {shape}, expected {wanted}")
        if len(self.groups) != num_rows or self.groups.num_groups != self.labels.graph.num_points:
            raise ValueError(
                f"groups have {len(self.groups)} rows of {self.groups.num_groups} groups; expected "
                f"{num_rows} rows, and {self.labels.graph.num_points} groups, which have labels"
            )
        codes = self.groups.codes
        if not isinstance(codes, Tracer) and (np.asarray(codes) < 0).any():
            row = int(np.argmax(np.asarray(codes) < 0))
            raise ValueError(
                f"row {row} belongs to no group; give every such row a group of its own, or leave it out"
            )
        if self.log_side is not None and jnp.shape(self.log_side) != (
            self.groups.num_groups,
            num_clusters,
        ):
            raise ValueError(
                f"log_side has shape {jnp.shape(self.log_side)}; expected "
                f"{(self.groups.num_groups, num_clusters)}, a log-factor per group and cluster"
            )

    @property
    def support(self) -> constraints.Constraint:
        """Real numbers."""
        return constraints.real_vector

    def log_factors(self, value: Array) -> dict[str, Array]:
        """Log-factors that couple outcomes, effects, labels and links.

        Returns
        -------
        dict
            ``precision`` (num_groups, num_clusters, num_effects, num_effects), ``shift``
            (num_groups, num_clusters, num_effects) and ``unary`` (num_groups, num_clusters): those
            of `RandomEffects` in each class; ``log_weights``, ``pair_weights`` and ``log_side`` as
            in `LinkedMixture`.

        Raises
        ------
        ValueError
            If the value is not one outcome per row.
        """
        if jnp.shape(value) != self.event_shape:
            raise ValueError(
                f"value has shape {jnp.shape(value)}, expected {self.event_shape}; use jax.vmap for "
                "batches"
            )
        sums = group_sums(jnp.asarray(value), self.fixed, self.design, self.groups, self.outputs)
        return self.class_factors(sums) | self.log_factors_of_labels()

    def class_factors(self, sums: RowSums) -> dict[str, Array]:
        """The log-factors that depend on the data, from sums over the rows of some groups."""
        by_class = jax.vmap(effect_factors, in_axes=(None, 0, 0, 0), out_axes=1)
        found = by_class(sums, self.coefficients, self.scale_tril, self.noise)
        found["unary"] = found.pop("rows") - self.design.shape[1] * _HALF_LOG_2PI
        return found

    def label_factors(self, factors: dict[str, Array]) -> Array:
        """Log-factors of the labels alone, shape (num_groups, num_clusters)."""
        unary = log_integrals({**factors, "constant": factors["unary"]})
        return unary + factors["log_side"] if "log_side" in factors else unary

    def posterior_given(self, share: Array, value: Array) -> dict[str, NamedArray]:
        r"""Posterior of the labels, and moments of the unwhitened effects b.

        Returns
        -------
        dict
            ``responsibilities`` (num_groups, num_clusters); ``effects`` (num_groups, num_effects), the
            predictors of the classes averaged by these, :math:`\sum_k r_{gk} E[b_g \mid y, k]` (Lu 2008,
            eq. 8.16); ``effects_covariance`` by the law of total variance.
        """
        center, root = moments(self.log_factors(value))
        own = jnp.einsum("gkj,kij->gki", center, self.scale_tril)
        spread = root @ self.scale_tril.mT
        mean = jnp.einsum("gk,gki->gi", share, own)
        apart = own - mean[:, None]
        within = jnp.einsum("gk,gkij->gij", share, spread.mT @ spread)
        between = jnp.einsum("gk,gki,gkj->gij", share, apart, apart)
        return super().posterior_given(share, value) | named_effects(mean, within + between)

    def draw(self, rng_key: Array, value: Array) -> LabelsAndEffects:
        """Draw all labels jointly, then whitened effects, given data and parameters."""
        factors = self.log_factors(value)
        key_labels, key_effects = jax.random.split(rng_key)
        labels = self.labels.draw_given(key_labels, self.label_factors(factors))
        own = {name: _of_label(factors[name], labels) for name in ("precision", "shift")}
        center, root = moments(own)
        white = jax.random.normal(key_effects, center.shape, center.dtype)
        return LabelsAndEffects(labels, center + (root.mT @ white[..., None])[..., 0])

    def statistic(self, latent: LabelsAndEffects) -> dict[str, Array]:
        """Sufficient statistics of drawn labels and effects, with the structure of `log_factors`."""
        labels, effects = latent
        found = self.label_statistic(labels)
        member, square = found["unary"], effects[:, :, None] * effects[:, None, :]
        found["shift"] = member[..., None] * effects[:, None]
        found["precision"] = member[..., None, None] * square[:, None]
        return found

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw labels, effects, then outcomes; statements and known classes are not held fixed."""
        if sample_shape:
            keys = jax.random.split(key, math.prod(sample_shape))
            drawn = jax.vmap(self.sample)(keys)
            return drawn.reshape(*sample_shape, *self.event_shape)
        key_labels, key_effects, key_noise = jax.random.split(key, 3)
        labels = self.labels.sample(key_labels)
        return self._outcomes(key_noise, LabelsAndEffects(labels, self._white(key_effects)))

    def draw_data(self, rng_key: Array, fitted: Fitted | None = None) -> Array:
        """Draw labels given links and known classes, effects, then outcomes, shape (num_rows,).

        Labels and effects of fitted groups are drawn given the fitted data.
        """
        key_fitted, key_labels, key_effects, key_noise = jax.random.split(rng_key, 4)
        own = None if fitted is None else fitted.fn.draw(key_fitted, fitted.value)
        labels = self.draw_labels(key_labels, None if own is None else own.labels, fitted)
        white = self._white(key_effects)
        if own is not None and fitted is not None:
            white = jnp.where(fitted.codes[:, None] < 0, white, own.effects[fitted.codes])
        return self._outcomes(key_noise, LabelsAndEffects(labels, white))

    def _white(self, key: Array) -> Array:
        """Draw whitened effects of every group from their prior."""
        shape = self.groups.num_groups, self.design.shape[1]
        return jax.random.normal(key, shape, self.design.dtype)

    def _outcomes(self, key: Array, latent: LabelsAndEffects) -> Array:
        """Draw outcomes given labels and whitened effects."""
        labels, white = latent
        codes = jnp.asarray(self.groups.codes)
        effects = jnp.einsum("gij,gj->gi", self.scale_tril[labels], white)
        mean = (self.fixed * self.coefficients[labels][codes]).sum(axis=1)
        mean = mean + (self.design * effects[codes]).sum(axis=1)
        noise = self.noise[labels][codes]
        own = noise[:, 0] if self.outputs is None else (noise * self.outputs).sum(axis=1)
        return mean + own * jax.random.normal(key, self.event_shape, mean.dtype)


def _of_label(values: Array, labels: Array) -> Array:
    """For each group, the entry of its drawn class in values (num_groups, num_clusters, ...)."""
    return values[jnp.arange(len(labels)), labels]
