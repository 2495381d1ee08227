"""The bill of materials of an image: SPDX 2.3 as JSON."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from oci_images.image import NEVER
from oci_images.layer import Package

NOT_KNOWN = "NOASSERTION"
DOCUMENT = "SPDXRef-DOCUMENT"
IMAGE = "SPDXRef-image"


def bill_of_materials(
    name: str, version: str, licence: str, source: str, digest: str, packages: list[Package]
) -> dict[str, Any]:
    """The document for the image with the manifest digest `digest` ("sha256:...")."""
    packages = sorted(set(packages), key=lambda p: (p.kind, p.name, p.version))
    hexdigest = digest.removeprefix("sha256:")
    document: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": DOCUMENT,
        "name": f"{name}-{version}",
        "documentNamespace": f"{source}/spdx/{name}-{version}-{hexdigest}",
        "creationInfo": {"created": NEVER, "creators": ["Tool: oci_images"]},
        "packages": [_image(name, version, licence, source, hexdigest), *map(_package, packages)],
        "relationships": [
            _relationship(DOCUMENT, "DESCRIBES", IMAGE),
            *(_relationship(IMAGE, "CONTAINS", _id(package)) for package in packages),
        ],
    }
    if extracted := _own_licences(packages):
        document["hasExtractedLicensingInfos"] = extracted
    return document


def _relationship(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def _image(name: str, version: str, licence: str, source: str, hexdigest: str) -> dict[str, Any]:
    return {
        "SPDXID": IMAGE,
        "name": name,
        "versionInfo": version,
        "primaryPackagePurpose": "CONTAINER",
        "downloadLocation": NOT_KNOWN,
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": hexdigest}],
        "homepage": source,
        "licenseConcluded": NOT_KNOWN,
        "licenseDeclared": licence,
        "licenseComments": "Of what is ours in the image; the packages that it contains have their own.",
        "copyrightText": NOT_KNOWN,
        "externalRefs": [_purl(f"pkg:oci/{name}@sha256%3A{hexdigest}?tag={quote(version)}")],
    }


def _package(package: Package) -> dict[str, Any]:
    described: dict[str, Any] = {
        "SPDXID": _id(package),
        "name": package.name,
        "versionInfo": package.version,
        "downloadLocation": NOT_KNOWN,
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": package.sha256}],
        "licenseConcluded": NOT_KNOWN,
        "licenseDeclared": package.licence or NOT_KNOWN,
        "copyrightText": NOT_KNOWN,
        "externalRefs": [_purl(package_url(package))],
    }
    if package.licence_notes:
        described["licenseComments"] = package.licence_notes
    if package.homepage:
        described["homepage"] = package.homepage
    if package.source:
        described["sourceInfo"] = f"built from Debian's source package {package.source}"
    if package.kind == "deb":
        described["supplier"] = "Organization: Debian"
    return described


def package_url(package: Package) -> str:
    """See the purl specification: versions are percent-encoded, names of pypi are lower case with dashes."""
    version = quote(package.version, safe=".-_~")
    if package.kind == "deb":
        return f"pkg:deb/debian/{package.name}@{version}?arch={package.architecture}&distro=debian-12"
    return f"pkg:pypi/{re.sub('[-_.]+', '-', package.name).lower()}@{version}"


def _purl(locator: str) -> dict[str, str]:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": locator}


def _id(package: Package) -> str:
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", f"{package.kind}-{package.name}-{package.version}")


def _own_licences(packages: list[Package]) -> list[dict[str, str]]:
    """SPDX wants a word on each licence that is not on its list."""
    users: dict[str, list[str]] = {}
    for package in packages:
        for name in set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", package.licence or "")):
            users.setdefault(name, []).append(package.name)
    return [
        {
            "licenseId": name,
            "name": name.removeprefix("LicenseRef-debian-").removeprefix("LicenseRef-"),
            "extractedText": f"The text of that name in the copyright files of: {', '.join(users[name])}.",
        }
        for name in sorted(users)
    ]
