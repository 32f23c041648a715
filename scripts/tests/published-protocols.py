#!/usr/bin/env python3
"""Tests that scripts/published-protocols.py finds the papers' protocols in the product."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
specification = importlib.util.spec_from_file_location("published", ROOT / "scripts/published-protocols.py")
published = importlib.util.module_from_spec(specification)
specification.loader.exec_module(published)


class Features(unittest.TestCase):
    """The features of this workspace."""

    def setUp(self):
        os.chdir(ROOT)

    def test_the_lab_enables_all_features_and_a_program_none(self):
        self.assertEqual(published.enabled(published.LAB), published.FEATURES.keys())
        self.assertIn("linewarden-gateway-program", published.programs())
        self.assertEqual(published.enabled("linewarden-gateway-program"), set())

    def test_a_program_with_the_lab_is_a_finding(self):
        with unittest.mock.patch.object(published, "programs", lambda: [published.LAB]):
            self.assertEqual(sum("enables" in finding for finding in published.findings()), len(published.FEATURES))


class Mentions(unittest.TestCase):
    """The files of a directory."""

    def test_only_files_of_the_product_outside_the_modules_count(self):
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            subprocess.run(["git", "init", "-q"], check=True)
            for name, text in (
                ("crates/a/src/lib.rs", "Classic"),
                ("crates/a/src/bpf/b.h", "LW_P4DRA"),
                ("crates/a/src/other.rs", "nothing"),
                ("crates/a/src/classic/mod.rs", "classic"),
                ("crates/a/src/tests.rs", "classic"),
                ("crates/a/tests/all/main.rs", "classic"),
                ("crates/lab/src/lib.rs", "classic"),
                ("programs/c/README.md", "classic"),
            ):
                path = pathlib.Path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            found = [str(path) for path in published.mentions()]
            os.chdir(ROOT)
        self.assertEqual(sorted(found), ["crates/a/src/bpf/b.h", "crates/a/src/lib.rs"])


if __name__ == "__main__":
    unittest.main()
