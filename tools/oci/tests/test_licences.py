"""Licences in SPDX's words."""

from __future__ import annotations

from email.parser import Parser

import pytest

from oci_images.licences import debian_licence, python_licence

HEAD = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"


@pytest.mark.parametrize(
    ("stanzas", "expression"),
    [
        ("License: Expat\n text of it", "MIT"),
        ("License: GPL-2+\n\nLicense: gpl-2+", "GPL-2.0-or-later"),
        ("License: GPL-2+ or Artistic", "GPL-2.0-or-later OR Artistic-1.0-Perl"),
        (
            "License: MPL-1.1 or GPL-2+, and BSD-3-clause\n\nLicense: Zlib",
            "BSD-3-Clause AND (MPL-1.1 OR GPL-2.0-or-later) AND Zlib",
        ),
        ("License: GPL-2+ or Expat\n\nLicense: Zlib", "(GPL-2.0-or-later OR MIT) AND Zlib"),
        ("License: public domain (really)", "LicenseRef-debian-public-domain-really"),
        ("Comment: none", None),
    ],
)
def test_of_debian_packages(stanzas: str, expression: str | None) -> None:
    assert debian_licence(HEAD + stanzas) == expression


def test_prose_is_not_guessed_at() -> None:
    assert debian_licence("This is free software.\n\nLicense: GPL-2+\n") is None


@pytest.mark.parametrize(
    ("metadata", "expression", "notes"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: x", "MIT OR Apache-2.0", ""),
        ("License: Apache License 2.0", "Apache-2.0", ""),
        ("License: the text\nClassifier: License :: OSI Approved :: MIT License", "MIT", ""),
        ("Classifier: License :: OSI Approved :: BSD License", None, "The distribution says: License :: OSI Approved"),
        ("License: BSD", None, "The distribution says: BSD."),
        ("Summary: x", None, ""),
    ],
)
def test_of_python_distributions(metadata: str, expression: str | None, notes: str) -> None:
    found, said = python_licence(Parser().parsestr(metadata))
    assert found == expression
    assert said.startswith(notes)
