"""Linear regressions of posteriordb: one model, whose prior and columns differ."""

from functools import partial
from typing import Annotated

import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.typing import ArrayLike

from .known import Draws, KnownPosterior, entries, moments_of, published

FLAT = dist.ImproperUniform(dist.constraints.positive, (), ())


def regression(
    columns: Annotated[ArrayLike, "rows predictors"],
    response: Annotated[ArrayLike, "rows"],
    *,
    centre=None,
    spread=None,
    scale=FLAT,
):
    """Normal response; slopes have a flat prior where none is given."""
    size = columns.shape[1]
    flat = dist.ImproperUniform(dist.constraints.real_vector, (), (size,))
    slopes = flat if centre is None else dist.Normal(centre, spread).to_event(1)
    beta = numpyro.sample("beta", slopes)
    sigma = numpyro.sample("sigma", scale)
    with numpyro.plate("rows", len(response)):
        numpyro.sample("response", dist.Normal(columns @ beta, sigma), obs=response)


def _design(*columns):
    return np.column_stack([np.ones(len(columns[0])), *columns])


def _levels(codes):
    return [(codes == level).astype(float) for level in (2, 3, 4)]


def _earnings(name, data):
    height, male, log_earn = data["height"], data["male"], np.log(data["earn"])
    standard = (height - height.mean()) / height.std(ddof=1)
    return {
        "earn_height": (_design(height), data["earn"]),
        "logearn_height": (_design(height), log_earn),
        "logearn_height_male": (_design(height, male), log_earn),
        "logearn_interaction_z": (_design(standard, male, standard * male), log_earn),
        "logearn_logheight_male": (_design(np.log(height), male), log_earn),
    }[name]


def _kidiq(name, data):
    school, iq = data["mom_hs"], data.get("mom_iq")
    if name == "kidscore_momhs":
        return _design(school), data["kid_score"]
    if name == "kidscore_momhsiq":
        return _design(school, iq), data["kid_score"]
    if name == "kidscore_mom_work":
        return _design(*_levels(data["mom_work"])), data["kid_score"]
    at = (school.mean(), iq.mean()) if name == "kidscore_interaction_c" else (0.5, 100.0)
    one, two = school - at[0], iq - at[1]
    return _design(one, two, one * two), data["kid_score"]


def _mesquite(name, data):
    one, two, canopy = data["diam1"], data["diam2"], data["canopy_height"]
    total, dense, group = data["total_height"], data["density"], data["group"]
    if name == "mesquite":
        return _design(one, two, canopy, total, dense, group), data["weight"]
    logs = {key: np.log(data[key]) for key in ("diam1", "diam2", "canopy_height", "total_height")}
    volume, area = np.log(one * two * canopy), np.log(one * two)
    apart, dense = np.log(one / two), np.log(dense)
    columns = {
        "logmesquite": [*logs.values(), dense, group],
        "logmesquite_logvas": [volume, area, apart, logs["total_height"], dense, group],
        "logmesquite_logvash": [volume, area, apart, logs["total_height"], group],
    }[name]
    return _design(*columns), np.log(data["weight"])


def _nes(name, data):
    ages = _levels(data["age_discrete"])
    rest = [data[key] for key in ("educ1", "gender", "income")]
    return _design(data["real_ideo"], data["race_adj"], *ages, *rest), data["partyid7"]


SETS = {
    "earnings": (
        _earnings,
        (
            "earn_height",
            "logearn_height",
            "logearn_height_male",
            "logearn_interaction_z",
            "logearn_logheight_male",
        ),
    ),
    "kidiq": (_kidiq, ("kidscore_momhs", "kidscore_momhsiq")),
    "kidiq_with_mom_work": (
        _kidiq,
        ("kidscore_interaction_c", "kidscore_interaction_c2", "kidscore_mom_work"),
    ),
    "mesquite": (
        _mesquite,
        ("logmesquite", "logmesquite_logvas", "logmesquite_logvash", "mesquite"),
    ),
    **{f"nes{year}": (_nes, ("nes",)) for year in (1972, 1980, 1984, 1992, 1996)},
}
HALF_CAUCHY = ("kidscore_momhs", "kidscore_momhsiq")


def _regression(source, build, name):
    record = published(f"{source}-{name}")
    data = {key: np.asarray(value, float) for key, value in record["data"].items()}
    options = {"scale": dist.HalfCauchy(2.5)} if name in HALF_CAUCHY else {}
    return KnownPosterior(
        regression, build(name, data), moments_of(record), "published draws", options
    )


def blr():
    """Simulated regression, whose coefficients are correlated."""
    record = published("sblrc-blr")
    data = np.asarray(record["data"]["X"], float), np.asarray(record["data"]["y"], float)
    options = {"centre": np.zeros(5), "spread": 10.0, "scale": dist.HalfNormal(10.0)}
    return KnownPosterior(regression, data, moments_of(record), "published draws", options)


def _two_lines(draws: Draws):
    """Names of this record: alpha and beta for the two slopes."""
    found = entries(draws)
    return {"alpha": found["beta[1]"], "beta": found["beta[2]"], "sigma": found["sigma"]}


def kilpisjarvi():
    """Trend of temperature over years that are not centred."""
    record = published("kilpisjarvi_mod-kilpisjarvi")
    data = record["data"]
    options = {
        "centre": np.array([data["pmualpha"], data["pmubeta"]], float),
        "spread": np.array([data["psalpha"], data["psbeta"]], float),
    }
    table = _design(np.asarray(data["x"], float)), np.asarray(data["y"], float)
    known = moments_of(record)
    return KnownPosterior(regression, table, known, "published draws", options, _two_lines)


POSTERIORS = {
    f"{source}-{name}": partial(_regression, source, build, name)
    for source, (build, names) in SETS.items()
    for name in names
} | {"sblrc-blr": blr, "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi}
