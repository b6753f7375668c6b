"""The software bill of materials, in CycloneDX 1.6 JSON.

For: `release.build`. The writer is small because the format is; the tests hold it to the official
schema. The same components and time give the same bytes.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from release.components import Component

# SPDX identifiers that packages here use; other words are a plain name in the bill.
_KNOWN = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MPL-2.0",
        "PSF-2.0",
        "Unlicense",
        "Zlib",
    }
)


def document(version: str, components: Sequence[Component], epoch: int) -> dict[str, Any]:
    """The bill of a release; `epoch` is its time in seconds."""
    listed = [_component(item) for item in sorted(set(components))]
    content = msgspec.json.encode([version, epoch, listed])
    serial = uuid.UUID(bytes=hashlib.sha256(content).digest()[:16], version=4)
    root = {
        "type": "application",
        "bom-ref": f"colibri-llm@{version}",
        "name": "colibri-llm",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:generic/colibri-llm@{version}",
    }
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": root,
        },
        "components": listed,
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": [item["bom-ref"] for item in listed]}
        ],
    }


def _component(item: Component) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": item.purl,
        "name": item.name,
        "version": item.version,
        "purl": item.purl,
    }
    if item.licence:
        found["licenses"] = [_licence(item.licence)]
    if item.digest:
        found["hashes"] = [{"alg": "SHA-512", "content": item.digest}]
    if item.homepage.startswith(("http://", "https://")):
        found["externalReferences"] = [{"type": "website", "url": item.homepage}]
    return found


def _licence(text: str) -> dict[str, Any]:
    if text in _KNOWN:
        return {"license": {"id": text}}
    names = re.sub(r"[()]|\b(AND|OR|WITH)\b", " ", text).split()
    if names and all(name in _KNOWN for name in names):
        return {"expression": text}
    return {"license": {"name": text[:200]}}


def encode(bill: dict[str, Any]) -> bytes:
    """The bytes of the file."""
    return msgspec.json.format(msgspec.json.encode(bill), indent=2) + b"\n"
