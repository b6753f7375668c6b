"""Bill of materials and licence page: true to what is bundled, valid, and the same each time."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release import components, licences, sbom
from release.components import Component

EPOCH = 1_700_000_000
CLICK = Component(kind="pypi", name="click", version="8.1", licence="BSD-3-Clause", texts=("BSD",))
REACT = Component(kind="npm", name="@x/react", version="19.0", licence="MIT", digest="ab" * 64)
ZLIB = Component(kind="deb", name="zlib1g", version="1:1.2", texts=("zlib text",))
ODD = Component(kind="pypi", name="odd", version="1", licence="a licence of its own (v2)")


def problems(bill: bytes) -> str:
    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode())
    return str(found) if found else ""


def test_the_bill_of_materials_is_valid_cyclonedx() -> None:
    bill = sbom.document("0.1.0", [CLICK, REACT, ZLIB, ODD], EPOCH)
    assert problems(sbom.encode(bill)) == ""
    names = {item["purl"] for item in bill["components"]}
    assert names == {
        "pkg:pypi/click@8.1",
        "pkg:npm/%40x/react@19.0",
        "pkg:deb/debian/zlib1g@1:1.2",
        "pkg:pypi/odd@1",
    }
    bill["components"][0]["type"] = "thing"
    assert problems(sbom.encode(bill))  # the check can fail


def test_the_same_components_give_the_same_bill_in_any_order() -> None:
    first = sbom.encode(sbom.document("0.1.0", [CLICK, REACT], EPOCH))
    assert sbom.encode(sbom.document("0.1.0", [REACT, CLICK, CLICK], EPOCH)) == first
    assert sbom.encode(sbom.document("0.1.1", [CLICK, REACT], EPOCH)) != first


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", {"license": {"id": "MIT"}}),
        ("MIT OR Apache-2.0", {"expression": "MIT OR Apache-2.0"}),
        ("BSD License", {"license": {"name": "BSD License"}}),
    ],
)
def test_a_licence_is_an_identifier_only_if_it_is_one(licence: str, expected: object) -> None:
    assert sbom._licence(licence) == expected


def test_python_packages_are_found_by_the_files_that_are_bundled() -> None:
    found = {item.name: item for item in components.python([click.__file__, "/no/such/file"])}
    assert "click" in found and "flask" not in found
    assert found["click"].licence and found["click"].texts


def test_only_what_the_dashboard_needs_to_run_is_listed(tmp_path: Path) -> None:
    lock = tmp_path / "package-lock.json"
    packages = {
        "": {"name": "dashboard"},
        "node_modules/a": {"version": "1.0", "license": "MIT", "integrity": "sha512-AAEC"},
        "node_modules/a/node_modules/@s/b": {"version": "2.0", "license": "ISC"},
        "node_modules/tool": {"version": "3.0", "dev": True},
    }
    lock.write_text(json.dumps({"packages": packages}))
    (tmp_path / "node_modules" / "a").mkdir(parents=True)
    (tmp_path / "node_modules" / "a" / "LICENSE").write_text("MIT text")
    found = components.javascript(lock)
    assert [(item.name, item.version, item.digest) for item in found] == [
        ("@s/b", "2.0", ""),
        ("a", "1.0", "000102"),
    ]
    assert found[1].texts == ("MIT text",)


def test_the_dashboards_own_lock_is_understood() -> None:
    lock = Path(__file__).resolve().parent.parent.parent / "frontend" / "package-lock.json"
    found = {item.name: item for item in components.javascript(lock)}
    assert {"react", "katex"} <= set(found) and "vite" not in found
    assert all(item.licence for item in found.values())


def test_the_licence_page_names_everyone_and_holds_each_text_once() -> None:
    twin = Component(kind="pypi", name="twin", version="2", licence="BSD", texts=("BSD",))
    page = licences.page("0.1.0", [CLICK, REACT, ZLIB, twin], [("words", "their licence")])
    for item in (CLICK, REACT, ZLIB, twin):
        assert f"{item.name} {item.version}" in page
    assert page.count("\nBSD\n") == 1 and "their licence" in page
    assert licences.without_text([CLICK, Component(kind="npm", name="n", version="1")]) == [
        "pkg:npm/n@1"
    ]
