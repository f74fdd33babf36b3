"""Numbers of components: code lengths, BIC, evidence, and models of like complexity."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from sidebayes.guides.code_length import code_length
from sidebayes.guides.engines.base import Evidence, Problem
from sidebayes.guides.engines.plumbing.programs import unchecked
from sidebayes.guides.engines.problem.density import abstract_trace, latent_sites
from sidebayes.guides.pfgl import prototype_code_length
from sidebayes.models.blocks.side_information.partial_labels import PartialLabels
from sidebayes.models.gmm import gmm
from sidebayes.models.moe import moe
from sidebayes.models.nfgl import nfgl
from sidebayes.models.pfgl import pfgl
from sklearn.mixture import GaussianMixture

import sidebayes as sb
from sidebayes.common.warnings import warn_user
from sidebayes.studies import component_number
from tests.support.classes import some_known, xor2d

IRIS = sb.load_dataset("iris")
KNOWN = np.where(np.arange(150) % 10 == 0, IRIS.labels, -1)
X = (IRIS.x - IRIS.x.mean(axis=0)) / IRIS.x.std(axis=0)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def length(model, *data, corners=(), **options):
    """Code length of a model at any values: it depends on shapes only."""
    args = tuple(jax.tree.map(jnp.asarray, one) for one in data)
    problem = Problem(model, args, options)
    sites = latent_sites(abstract_trace(problem))
    values = {name: jnp.ones(jnp.shape(site["value"])) for name, site in sites.items()}
    with unchecked():
        return code_length(problem, values, len(X), corners)


@pytest.mark.parametrize(
    ("covariance", "theirs"),
    [("full", "full"), ("tied", "tied"), ("diagonal", "diag"), ("spherical", "spherical")],
)
def test_a_mixture_has_as_many_parameters_as_scikit_learn_counts(covariance, theirs):
    peer = GaussianMixture(3, covariance_type=theirs, random_state=0).fit(X)
    ours = length(gmm, X, num_clusters=3, covariance=covariance)
    assert ours == pytest.approx(peer._n_parameters() * np.log(len(X)) / 2)


def test_classes_are_charged_as_in_the_thesis():
    """Raghuram (2014), sections 2.4.5 and 2.7.2: prototypes, and components of one class each."""
    known, sizes = PartialLabels(KNOWN), {"num_clusters": 2, "num_classes": 3}
    prototypes = ((0, 0), (1, 1), (1, 2))
    expected = prototype_code_length(0.0, 150, 15, 4, 3, 2, 14, 3)
    assert length(pfgl, X, known, prototypes=prototypes, **sizes) == pytest.approx(expected)
    mixture = (1 + 2 * 14) * np.log(150) / 2
    hard = length(moe, X, known, corners=sb.HardClasses.corners, **sizes)
    assert hard == pytest.approx(mixture + 2 * np.log(3))
    soft = length(moe, X, known, **sizes)
    assert soft == pytest.approx(mixture + 2 * 2 * np.log(150) / 2)


class Ran(sb.Fit):
    """A fit with a BIC, and an evidence, by its number of components."""

    def __init__(self, number, bic):
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "value", bic)

    bic = property(lambda self: self.value)
    log_evidence = property(lambda self: Evidence(-self.value))
    verdict = "good", ""
    engine = "none"


def factored(x, *, num_clusters):
    """A mixture with a factor, which has no BIC."""
    gmm(x, num_clusters=num_clusters)
    numpyro.factor("tilt", 1.0)


EVIDENCE = {"criterion": "evidence"}
BICS = {1: 9.0, 2: 4.0, 3: np.inf, 4: 0.5, 5: 8.0, 6: 12.0}


@pytest.fixture
def ran(monkeypatch):
    """Numbers that were tried, in order; the third collapses."""
    tried = []

    def fit(method, *data, num_clusters, **options):
        tried.append(num_clusters)
        if num_clusters == 3:
            raise sb.FitError("collapsed", {})
        return Ran(num_clusters, BICS[num_clusters])

    monkeypatch.setattr(component_number, "fit", fit)
    return tried


@pytest.mark.filterwarnings("ignore:of 3 components there is no evidence")
def test_the_least_bic_and_the_greatest_evidence_are_chosen(ran):
    for criterion in ("bic", "evidence"):
        found = sb.select_components("gmm", X, num_clusters=range(1, 7), criterion=criterion)
        assert found.num_clusters == found.fit.number == 4
        assert list(found.path.index) == [1, 2, 3, 4, 5, 6]
        assert found.path.drop(columns="chosen").loc[3].isna().all()
    assert ran == [
        1,
        2,
        3,
        4,
        5,
        6,
        1,
        2,
        3,
        3,
        4,
        5,
        6,
    ]  # by two engines where the first has no fit


class Drawn(Ran):
    """A fit by draws, which tell the evidence of one component only."""

    engine = "gibbs"
    log_evidence = None
    config = sb.BlockedGibbs()

    def with_evidence(self):
        if self.number > 1:
            raise ValueError("the draws are not to be trusted")
        return Ran(self.number, 20.0)


@pytest.mark.filterwarnings("ignore:. component.* the most")
def test_draws_tell_the_evidence_and_smc_does_where_they_do_not(monkeypatch):
    tried = []

    def fit(method, *data, num_clusters, engine, **options):
        tried.append((num_clusters, engine))
        return Ran(num_clusters, 5.0) if engine == "smc" else Drawn(num_clusters, 0.0)

    monkeypatch.setattr(component_number, "fit", fit)
    asked = {"num_clusters": [1, 2], "criterion": "evidence"}
    found = sb.select_components("gmm", X, **asked)
    assert tried == [(1, "gibbs"), (2, "gibbs"), (2, "smc")]
    assert found.path["log_evidence"].to_list() == [-20.0, -5.0]
    with pytest.warns(sb.SideBayesWarning, match="of 2 components there is no evidence"):
        found = sb.select_components("gmm", X, **asked, engine="nuts")
    assert found.num_clusters == 1
    with pytest.raises(sb.FitError, match="no number of components has an evidence"):
        sb.select_components("gmm", X, num_clusters=[2], criterion="evidence", engine="nuts")


def test_the_first_beyond_another_fit_is_chosen_and_no_more_are_tried(ran):
    found = sb.select_components("moe", X, num_clusters=[6, 5, 4, 2], beyond=Ran(0, 5.0))
    assert found.num_clusters == 5
    assert ran == [2, 4, 5]
    with pytest.raises(ValueError, match="no BIC exceeds that of beyond, 20, the last is 12"):
        sb.select_components("moe", X, num_clusters=[5, 6], beyond=Ran(0, 20.0))
    with pytest.raises(sb.FitError, match="no number of components has a fit"):
        sb.select_components("moe", X, num_clusters=[3])


def test_what_many_fits_say_is_said_once_and_of_the_users_line(ran, monkeypatch):
    fitted = component_number.fit

    def fit(method, *data, num_clusters, **options):
        warn_user(f"clusters cannot be matched (score 0.{num_clusters})")
        return fitted(method, *data, num_clusters=num_clusters, **options)

    monkeypatch.setattr(component_number, "fit", fit)
    with pytest.warns(sb.SideBayesWarning, match="cannot be matched") as caught:
        sb.select_components("gmm", X, num_clusters=[2, 4, 5])
    assert [str(one.message) for one in caught] == ["clusters cannot be matched (score 0.2)"]
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("ignore:of 3 components there is no evidence")
@pytest.mark.parametrize("criterion", ["bic", "evidence"])
def test_copies_of_rows_are_told(ran, criterion):
    with pytest.warns(sb.SideBayesWarning, match="300 of 300 rows of x equal another one"):
        sb.select_components(
            "gmm", np.concatenate([X, X]), num_clusters=range(1, 6), criterion=criterion
        )


def test_fewer_components_than_links_need_have_no_score_and_are_not_advised(ran, monkeypatch):
    apart = sb.Links.cannot_link([(0, 1)])
    quick = {"engine": sb.EM(num_restarts=1), "progress": False}
    assert not sb.select_components("ppc", X, apart, num_clusters=[2, 3, 5], **quick).edge
    with pytest.warns(sb.SideBayesWarning, match="try smaller numbers"):
        sb.select_components("ppc", X, num_clusters=[2, 5], **quick)
    fitted = component_number.fit

    def fit(method, *data, num_clusters, **options):
        sb.Links.check(apart, 2, num_clusters)
        return fitted(method, *data, num_clusters=num_clusters, **options)

    monkeypatch.setattr(component_number, "fit", fit)
    found = sb.select_components("ppc", X, apart, num_clusters=[1, 2, 3, 5], **quick)
    assert not found.edge
    assert found.path["bic"].isna().to_list() == [True, False, True, False]
    assert found.lost.keys() == {1, 3}
    told = "num_clusters = 1 has no fit: cannot-link (0, 1) needs two clusters"
    assert told in repr(found)
    with pytest.raises(ValueError, match="needs two clusters"):
        sb.select_components("ppc", X, apart, num_clusters=[1], **quick)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_clusters": 3}, "pass several numbers"),
        ({"num_clusters": []}, "num_clusters is empty"),
        ({"num_clusters": [0]}, "num_clusters"),
        ({"criterion": "aic"}, "expected 'bic' or 'evidence'"),
        ({"method": "nfgl"}, "base=choice.fit to fit_nfgl"),
        ({"method": "pfgl"}, "pfgl: missing a required argument: 'known'"),
        ({"method": "pfgl", "criterion": "evidence"}, "need criterion='bic'"),
        (
            {"method": "feature_saliency"},
            "no BIC; fit it once, .* by criterion='evidence': .*'sparse'",
        ),
        ({"method": factored}, "has the factor 'tilt', .* no BIC; choose by criterion"),
        ({"beyond": 3.0}, "beyond is a float"),
        (
            {"engine": "nuts"},
            "'nuts' gives draws, and criterion='bic' is of a mode; pass criterion=",
        ),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input_is_refused(ran, change, message):
    given = {"method": "gmm", "num_clusters": [1, 2]} | change
    with pytest.raises((TypeError, ValueError), match=message):
        sb.select_components(given.pop("method"), X, **given)


def test_latent_individuals_are_refused_before_a_fit(ran):
    square = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
    turned = square + 0.1 * np.random.default_rng(0).normal(size=(5, 4, 2))
    frame = sb.register_points(sb.Landmarks.from_array(turned), num_modes=2)
    given = {"chart": frame.chart, "rank": 1, "num_clusters": [1, 2], "progress": False}
    with pytest.raises(ValueError, match="no likelihood over the coordinates of individuals"):
        sb.select_components("latent_shape", frame.x, frame.subjects, frame.landmarks, **given)
    assert not ran


@pytest.mark.parametrize("given", [{}, EVIDENCE, EVIDENCE | {"engine": "smc"}])
def test_no_criterion_chooses_for_penalised_fits(ran, given):
    with pytest.raises(ValueError, match="'must', .* no criterion chooses its number"):
        sb.select_components("constraint_fit", X, num_clusters=[1, 2], **given)
    assert not ran


def test_evidence_is_refused_where_no_engine_gives_it(ran):
    with pytest.raises(ValueError, match="scp has engines that end at a mode.*criterion='bic'"):
        sb.select_components("scp", X, num_clusters=[1, 2], criterion="evidence")
    assert not ran


def test_bic_is_of_a_mode_of_a_likelihood():
    engine = sb.EM(num_restarts=1, max_steps=20)
    fit = sb.fit("gmm", X, num_clusters=2, engine=engine, progress=False)
    terms = 2 * length(gmm, X, num_clusters=2) - 2 * fit.unit_terms.sum()
    assert fit.bic == pytest.approx(terms)
    sampler = sb.BlockedGibbs(num_warmup=1, num_samples=5, num_chains=1)
    several = sb.fit("gmm", X, num_clusters=2, engine=sampler, progress=False)
    with pytest.raises(ValueError, match="gibbs gave draws, and BIC is of a mode"):
        _ = several.bic
    rows = np.flatnonzero(KNOWN >= 0)
    anchors = sb.Anchors(X[rows], KNOWN[rows], KNOWN[rows], np.full((3, 3), 1 / 3))
    with pytest.raises(ValueError, match="a factor that is no likelihood, 'classes'"):
        length(nfgl, X, anchors=anchors, num_clusters=3, num_classes=3)
    with pytest.raises(ValueError, match="gives no evidence"):
        sb.select_components(
            "gmm", X, num_clusters=[2], criterion="evidence", engine=engine, progress=False
        )


@pytest.mark.slow
def test_crossed_classes_are_of_two_components():
    """Check R10: BIC of one to four full Gaussians; for `moe` too, whose tables teach nothing here."""
    x, classes = xor2d(np.random.default_rng(0), 400)
    known = some_known(np.random.default_rng(1), classes, 160)
    for method, data, options in (("gmm", (x,), {}), ("moe", (x, known), {"num_classes": 2})):
        found = sb.select_components(
            method,
            *data,
            num_clusters=range(1, 5),
            engine=sb.EM(num_restarts=3),
            progress=False,
            **options,
        )
        assert found.num_clusters == 2
        assert found.path["bic"].notna().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:clusters cannot be matched", "ignore:the log evidence of")
def test_evidence_finds_two_components():
    x, _ = xor2d(np.random.default_rng(0), 30)
    prior = sb.GaussianPrior(x.mean(axis=0), 0.01, 4.0, np.eye(2))
    engine = sb.SMC(num_particles=200, num_runs=4)
    found = sb.select_components(
        "gmm",
        x,
        num_clusters=range(1, 4),
        criterion="evidence",
        engine=engine,
        prior=prior,
        progress=False,
    )
    assert found.num_clusters == 2
    assert (found.path["standard_error"] < 2.0).all()


@pytest.mark.slow
def test_hard_classes_grow_beyond_prototypes():
    """MOE-hard-plus: as many components of one class as are worth more than prototypes."""
    sizes = {"num_classes": 3, "progress": False}
    with pytest.warns(sb.SideBayesWarning, match="fewest that were tried"):
        rival = sb.select_components("pfgl", X, KNOWN, num_clusters=range(2, 4), **sizes)
    engine = sb.HardClasses(num_restarts=3)
    plus = sb.select_components(
        "moe", X, KNOWN, num_clusters=range(3, 9), beyond=rival.fit, engine=engine, **sizes
    )
    assert plus.path["bic"].iloc[-1] > rival.fit.bic
    assert (plus.path["bic"].iloc[:-1] <= rival.fit.bic).all()
    assert plus.fit.engine == "hard_classes"
    assert set(plus.fit.params["class_table"].argmax(axis=1)) == {0, 1, 2}
