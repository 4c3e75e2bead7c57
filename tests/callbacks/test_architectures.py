"""Every measure on small nets of the architectures that people train: it runs, or the docs say why not."""

import warnings

import pytest

from docs.architectures import HEAD, MEASURES, PAGE, outcomes, small, table, written


@pytest.mark.slow
def test_the_table_in_the_docs_is_what_happens():
    """What a page says of paths may be older than what they reach: they run wherever it says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and timm about themselves
        found = outcomes(small())
    made, said = (page.split("\n\n")[0].splitlines() for page in (table(found), written(PAGE.read_text())))
    assert len(made) == len(said) == 12 and made[0] == said[0] and made[0].startswith(HEAD)
    paths = 2 + list(MEASURES).index("EffectiveDepth")
    for row, in_docs in zip(made[2:], said[2:]):
        cells, expected = ([cell.split(":")[0].strip() for cell in line.split("|")] for line in (row, in_docs))
        assert cells[:paths] == expected[:paths]
        assert cells[paths] == "runs" or expected[paths] == "no"
    reasons = {why for row in found.values() for measure, why in row.items() if why and measure != "EffectiveDepth"}
    assert not [why for why in reasons if why.partition(":")[0].endswith("Error")], "no message for a user"
