"""The page of third-party licences that comes with a release and that the dashboard shows.

For: `release.build`. Plain text, one section per component, equal licence texts once.
"""

from __future__ import annotations

from collections.abc import Iterable

from release.components import BOOTLOADER, Component

_TITLES = {
    "pypi": "Python packages",
    "npm": "JavaScript packages of the dashboard",
    "deb": "Libraries of the system that travel along",
    "generic": "Other",
}
_RULE = "=" * 78
_BOOTLOADER_NOTE = (
    "Only its start-up program is in the release. "
    "Its licence lets programs that it starts have any licence."
)


def page(
    version: str, components: Iterable[Component], notices: Iterable[tuple[str, str]] = ()
) -> str:
    """The whole page. `notices` are further works, such as the words of the starter model: name,
    text.
    """
    listed = sorted(set(components))
    lines = [
        f"Colibri {version} is licensed under the Apache License 2.0.",
        "It contains the work of others, listed here with their licences. Thank you.",
        "",
    ]
    for kind, title in _TITLES.items():
        chosen = [item for item in listed if item.kind == kind]
        if chosen:
            lines += [title, "-" * len(title)]
            lines += [f"  {item.name} {item.version}  {item.licence}".rstrip() for item in chosen]
            lines.append("")
    owners: dict[str, list[str]] = {}
    for item in listed:
        for text in item.texts:
            owners.setdefault(text.strip(), []).append(f"{item.name} {item.version}")
    for name, text in notices:
        owners.setdefault(text.strip(), []).append(name)
    for text, names in owners.items():
        lines += [_RULE, *sorted(set(names))]
        if any(name.startswith(f"{BOOTLOADER} ") for name in names):
            lines.append(_BOOTLOADER_NOTE)
        lines += [_RULE, "", text, ""]
    return "\n".join(lines)


def without_text(components: Iterable[Component]) -> list[str]:
    """Components that name no licence and bring no licence text: someone must look at these."""
    return sorted(item.purl for item in components if not item.texts and not item.licence)
