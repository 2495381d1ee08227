"""Licences in SPDX's words, from what Debian packages and Python distributions say of themselves."""

from __future__ import annotations

import re
from email.message import Message

DEBIAN = {
    "apache-2.0": "Apache-2.0",
    "artistic": "Artistic-1.0-Perl",
    "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause",
    "bsd-4-clause": "BSD-4-Clause",
    "bzip2-1.0.6": "bzip2-1.0.6",
    "expat": "MIT",
    "gfdl-1.3": "GFDL-1.3-only",
    "gpl-1": "GPL-1.0-only",
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
    "mit": "MIT",
    "mpl-1.1": "MPL-1.1",
    "mpl-2.0": "MPL-2.0",
    "openssl": "OpenSSL",
    "psf-2": "PSF-2.0",
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


def debian_licence(copyright_text: str) -> str | None:
    """The SPDX expression of a package by its file `copyright`, None where that is prose.

    Every licence that the file names holds for some part. One that SPDX does not know is LicenseRef-debian-NAME.
    """
    if "copyright-format/1.0" not in copyright_text.split("\n\n", 1)[0]:
        return None
    names = sorted(set(re.findall(r"(?mi)^License:[ \t]*(\S.*?)[ \t]*$", copyright_text)), key=str.lower)
    if not names:
        return None
    parts = sorted({part for name in names for part in _conjuncts(name)})
    if len(parts) == 1:
        return parts[0]
    return " AND ".join(f"({part})" if " OR " in part else part for part in parts)


def _conjuncts(name: str) -> list[str]:
    """The licences that hold together, of what Debian writes as "GPL-2+ or Artistic, and BSD-3-clause"."""
    for both in (r",\s*and\s+", r"\s+or\s+", r"\s+and\s+"):  # what binds least comes first
        parts = re.split(both, name, flags=re.IGNORECASE)
        if len(parts) == 1:
            continue
        known = [_conjuncts(part) for part in parts]
        if "or" in both:
            return [" OR ".join(k[0] if len(k) == 1 else f"({' AND '.join(k)})" for k in known)]
        return [conjunct for k in known for conjunct in k]
    return [DEBIAN.get(name.lower()) or "LicenseRef-debian-" + re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-")]


def python_licence(metadata: Message) -> tuple[str | None, str]:
    """(SPDX expression, what else is to say) of a distribution by its METADATA; None where that is not clear."""
    if expression := metadata.get("License-Expression"):
        return str(expression), ""
    field = str(metadata.get("License", "")).strip()
    if known := PYTHON.get(field.lower()):
        return known, ""
    classifiers = [str(c) for c in metadata.get_all("Classifier", []) if c.startswith("License ::")]
    found = {CLASSIFIERS.get(c) for c in classifiers}
    if len(found) == 1 and (known := found.pop()):
        return known, ""
    said = [*classifiers, *([field.splitlines()[0]] if field else [])]
    return None, f"The distribution says: {'; '.join(said)}." if said else ""
