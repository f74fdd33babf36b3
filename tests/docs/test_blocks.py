"""Every Python block of README.md and docs runs as printed, those of a page one after another."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OWN_TEST = {"docs/your_own_model.md"}
"""Pages whose blocks run in a test that checks what they print as well."""
DEAR = {
    "README.md",
    "docs/benchmarks.md",
    "docs/calibration.md",
    "docs/clusters.md",
    "docs/comparing_engines.md",
    "docs/engines.md",
    "docs/engines/checkpoints.md",
    "docs/engines/coordinate_ascent.md",
    "docs/engines/gibbs.md",
    "docs/engines/nested.md",
    "docs/engines/pathfinder.md",
    "docs/engines/smc.md",
    "docs/engines/stochastic_em.md",
    "docs/estimators.md",
    "docs/links_selection.md",
    "docs/methods/constraint_fit.md",
    "docs/methods/constraint_projection.md",
    "docs/methods/decline_detection.md",
    "docs/methods/domain_adaptation.md",
    "docs/methods/feature_saliency.md",
    "docs/methods/geodesic_embedding.md",
    "docs/methods/hierarchical_shape.md",
    "docs/methods/incremental_isomap.md",
    "docs/methods/joint_survival.md",
    "docs/methods/latent_shape.md",
    "docs/methods/mcp.md",
    "docs/methods/mixed_effects_mixture.md",
    "docs/methods/moe.md",
    "docs/methods/nfgl.md",
    "docs/methods/pair_mixture.md",
    "docs/methods/scp.md",
    "docs/methods/trajectories.md",
    "docs/methods/pfgl.md",
    "docs/predicting.md",
    "docs/scores.md",
}
"""Pages that take ten seconds or more."""
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^\n]+) -->\n)?```python\n(?P<code>.*?)^```", re.S | re.M
)


def blocks(page):
    """Code of each block, behind as many empty lines as the page has above it."""
    text = page.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    assert len(found) == text.count("```python")
    return [
        (match["why"], "\n" * text.count("\n", 0, match.start("code")) + match["code"])
        for match in found
    ]


def pages():
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        if blocks(page) and name not in OWN_TEST:
            yield pytest.param(page, id=name, marks=pytest.mark.slow if name in DEAR else ())


@pytest.mark.parametrize("page", list(pages()))
@pytest.mark.filterwarnings("ignore::sidebayes.guides.engines.base.SideBayesWarning")
def test_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for why, code in blocks(page):
        if why is None:
            exec(compile(code, str(page), "exec"), names)


def test_few_blocks_are_left_out():
    left_out = [(page.name, why) for page in PAGES for why, _ in blocks(page) if why]
    assert sorted({name for name, _ in left_out}) == [
        "checkpoints.md",
        "domain_adaptation.md",
        "mcp.md",
    ]
