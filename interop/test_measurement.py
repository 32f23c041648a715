"""docs/vectors/measurement.json agrees with docs/measurement.md."""

import json
from pathlib import Path

import measurement


def test_vectors_are_those_of_the_page():
    written = (Path(__file__).parents[1] / "docs/vectors/measurement.json").read_text()
    assert json.loads(written) == measurement.vectors()
