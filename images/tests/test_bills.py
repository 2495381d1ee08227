"""The bill of materials of each image: SPDX 2.3, and complete."""

from __future__ import annotations

import re
from typing import Any

from image_files import Image

ID = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")
PURL = re.compile(
    r"pkg:(deb/debian/[a-z0-9.+-]+|pypi/[a-z0-9-]+|oci/[a-z0-9-]+)@[A-Za-z0-9.%_~-]+(\?[a-z]+=[^&]+(&[a-z]+=[^&]+)*)?"
)
LICENCE = re.compile(r"[A-Za-z0-9.+-]+")
REQUIRED = {
    "SPDXID",
    "name",
    "downloadLocation",
    "filesAnalyzed",
    "licenseConcluded",
    "licenseDeclared",
    "copyrightText",
}


def purl(package: dict[str, Any]) -> str:
    [reference] = package["externalRefs"]
    assert (reference["referenceCategory"], reference["referenceType"]) == ("PACKAGE-MANAGER", "purl")
    return str(reference["referenceLocator"])


def of_kind(image: Image, prefix: str) -> list[dict[str, Any]]:
    return [p for p in image.bill["packages"] if purl(p).startswith(prefix)]


def test_document_is_spdx_2_3(image: Image) -> None:
    bill = image.bill
    assert (bill["spdxVersion"], bill["dataLicense"], bill["SPDXID"]) == ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT")
    assert re.fullmatch(r"https://[^#\s]+", bill["documentNamespace"])
    assert bill["creationInfo"] == {"created": "1970-01-01T00:00:00Z", "creators": ["Tool: oci_images"]}
    ids = [package["SPDXID"] for package in bill["packages"]]
    assert len(set(ids)) == len(ids)
    for package in bill["packages"]:
        assert package.keys() >= REQUIRED
        assert ID.fullmatch(package["SPDXID"])
        assert PURL.fullmatch(purl(package)), purl(package)
        [checksum] = package["checksums"]
        assert checksum["algorithm"] == "SHA256"
        assert re.fullmatch("[0-9a-f]{64}", checksum["checksumValue"])


def test_relations_lead_from_the_document_over_the_image_to_all_packages(image: Image) -> None:
    told = {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in image.bill["relationships"]}
    [described, *packages] = image.bill["packages"]
    assert told == {
        ("SPDXRef-DOCUMENT", "DESCRIBES", described["SPDXID"]),
        *((described["SPDXID"], "CONTAINS", package["SPDXID"]) for package in packages),
    }


def test_it_is_about_this_image(image: Image) -> None:
    [described] = of_kind(image, "pkg:oci/")
    labels = image.config["config"]["Labels"]
    assert described["name"] == labels["org.opencontainers.image.title"]
    assert described["versionInfo"] == labels["org.opencontainers.image.version"]
    assert "sha256:" + described["checksums"][0]["checksumValue"] == image.digest
    assert described["primaryPackagePurpose"] == "CONTAINER"


def test_it_names_each_debian_package_and_no_other(image: Image) -> None:
    listed = {(p["name"], p["versionInfo"]) for p in of_kind(image, "pkg:deb/")}
    assert listed == {(p["Package"], p["Version"]) for p in image.debian_packages()}
    assert "libc6" in {name for name, _ in listed}


def test_it_names_each_python_distribution_and_no_other(image: Image) -> None:
    listed = {(p["name"], p["versionInfo"]) for p in of_kind(image, "pkg:pypi/")}
    assert listed == {(d["Name"], d["Version"]) for d in image.distributions()}
    assert "grpcio" in {name for name, _ in listed}


def test_checksums_of_debian_packages_are_those_of_the_lock(image: Image, debs_lock: dict[str, list[str]]) -> None:
    """Of those that Debian still has in the locked version; see tools/oci/fetch_debs.sh."""
    for package in of_kind(image, "pkg:deb/"):
        version, sha256 = debs_lock[package["name"]]
        assert version != package["versionInfo"] or sha256 == package["checksums"][0]["checksumValue"]


def test_licences_are_expressions_and_each_of_their_words_is_known(image: Image) -> None:
    extracted = {e["licenseId"]: e["extractedText"] for e in image.bill.get("hasExtractedLicensingInfos", [])}
    used = set()
    for package in image.bill["packages"]:
        words = re.sub(r"[()]", " ", package["licenseDeclared"]).split()
        assert all(LICENCE.fullmatch(word) for word in words), package["licenseDeclared"]
        assert all((w in ("AND", "OR", "WITH")) == bool(n % 2) for n, w in enumerate(words)), words
        used |= {word for word in words if word.startswith("LicenseRef-")}
        if words == ["NOASSERTION"]:
            assert package["licenseComments"], f"{package['name']}: where is its licence to be found?"
    assert used == set(extracted)
    known = [p for p in image.bill["packages"] if p["licenseDeclared"] != "NOASSERTION"]
    assert len(known) > len(image.bill["packages"]) / 2
