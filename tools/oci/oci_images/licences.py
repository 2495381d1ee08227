"""Licences in SPDX's words, from what Debian packages and Python distributions say of themselves."""

from __future__ import annotations

import re
from email.message import Message

DEBIAN = {
    "apache-2.0": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bzip2-1.0.6": "bzip2-1.0.6",
    "expat": "MIT",
    "gfdl-1.3": "GFDL-1.3-only",
    "gpl-1+": "GPL-1.0-or-later",
    "gpl-2": "GPL-2.0-only",
    "gpl-2+": "GPL-2.0-or-later",
    "gpl-3": "GPL-3.0-only",
    "gpl-3+": "GPL-3.0-or-later",
    "isc": "ISC",
    "lgpl-2": "LGPL-2.0-only",
    "lgpl-2+": "LGPL-2.0-or-later",
    "lgpl-2.1": "LGPL-2.1-only",
    "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3+": "LGPL-3.0-or-later",
    "mpl-2.0": "MPL-2.0",
    "zlib": "Zlib",
}
"""Short names of machine-readable copyright files (copyright-format 1.0)."""

PYTHON = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache-2.0": "Apache-2.0",
    "bsd-3-clause": "BSD-3-Clause",
    "mit": "MIT",
    "mit license": "MIT",
    "mpl-2.0": "MPL-2.0",
    "psf-2.0": "PSF-2.0",
}
"""What stands in the old field License, where it is clear."""

CLASSIFIERS = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "License :: OSI Approved :: Python Software Foundation License": "PSF-2.0",
}
"""Only those that name one licence; "BSD License" is several."""


def debian_licence(copyright_text: str) -> tuple[str | None, str]:
    """(SPDX expression or None, what else is to say) of a package's file `copyright`.

    There is an expression only where every licence in the file is known; all of them then hold for some part.
    """
    if "copyright-format/1.0" not in copyright_text.split("\n\n", 1)[0]:
        return None, ""
    names = sorted(set(re.findall(r"(?mi)^License:[ \t]*(\S.*?)[ \t]*$", copyright_text)), key=str.lower)
    parts = {part for name in names for part in re.split(r",?\s+(?:and|or)\s+", name.strip(), flags=re.IGNORECASE)}
    known = {part: DEBIAN.get(part.lower()) for part in parts}
    notes = f"Debian names these licences: {'; '.join(names)}."
    if not known or None in known.values() or any(re.search(r"\bor\b", name, re.IGNORECASE) for name in names):
        return None, notes
    return " AND ".join(sorted({spdx for spdx in known.values() if spdx})), notes


def python_licence(metadata: Message) -> str | None:
    """The SPDX expression of a distribution by its METADATA, None where that does not say it clearly."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    if known := PYTHON.get(str(metadata.get("License", "")).strip().lower()):
        return known
    found = {CLASSIFIERS.get(c) for c in metadata.get_all("Classifier", []) if c.startswith("License ::")}
    return found.pop() if len(found) == 1 else None
