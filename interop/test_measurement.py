"""Compares docs/vectors/measurement.json with measurement.py, which follows docs/measurement.md."""

import json
from pathlib import Path

import measurement


def test_vectors():
    vectors_file = (Path(__file__).parents[1] / "docs/vectors/measurement.json").read_text()
    assert json.loads(vectors_file) == measurement.vectors()
