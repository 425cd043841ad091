"""Writes what programs contain as an SPDX document (2.3, JSON), and the notices as text. Pure: no
process, no clock. Equal components give equal bytes."""

import hashlib
import json
import re
import uuid

# The suppliers of packages by ID of os-release, which is also their name in a purl.
SUPPLIERS = {"debian": "Debian", "ubuntu": "Ubuntu"}
ROOT = "SPDXRef-Package-ddprun"
HEAD = """\
The programs of ddprun contain code of these libraries, as packages of the builder's system have
them. Each part below has the notices of one, and the texts of common licences follow at the end.
ddprun.spdx.json is the same as data.
"""


def name_for(text):
    """Returns the text with no letter that an SPDX identifier forbids."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", text)


def text_of(component):
    return "\n".join(sorted(component.texts))


def own_package(version):
    return {"SPDXID": ROOT, "name": "ddprun", "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
            "copyrightText": "2026 The ddprun developers", "primaryPackagePurpose": "APPLICATION"}


def origin(component, system):
    """Returns the fields that say whose package it is; none of a system that nobody knows."""
    if system not in SUPPLIERS:
        return {"supplier": "NOASSERTION"}
    purl = f"pkg:deb/{system}/{component.name}@{component.version}?arch=source"
    return {"supplier": f"Organization: {SUPPLIERS[system]}",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": purl}]}


def package(component, system):
    name = name_for(component.name)
    parts = ", ".join(sorted(component.archives)) or "headers alone"
    return {"SPDXID": f"SPDXRef-Package-{name}", "name": component.name,
            "versionInfo": component.version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": f"LicenseRef-package-{name}", "copyrightText": "NOASSERTION",
            "sourceInfo": f"from {', '.join(sorted(component.packages))}: {parts}",
            **origin(component, system)}


def license_info(component):
    return {"licenseId": f"LicenseRef-package-{name_for(component.name)}",
            "name": f"the notices of the package {component.name}",
            "extractedText": text_of(component)}


def file_entry(name, content):
    return {"SPDXID": f"SPDXRef-File-{name_for(name)}", "fileName": f"./bin/{name}",
            "fileTypes": ["BINARY"], "copyrightText": "NOASSERTION",
            "licenseConcluded": "NOASSERTION", "licenseInfoInFiles": ["NOASSERTION"],
            "checksums": [{"algorithm": kind.upper(),
                           "checksumValue": hashlib.new(kind, content).hexdigest()}
                          for kind in ("sha1", "sha256")]}


def relation(one, kind, other):
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def relations(programs):
    yield relation("SPDXRef-DOCUMENT", "DESCRIBES", ROOT)
    for name, (_, parts) in sorted(programs.items()):
        ours = f"SPDXRef-File-{name_for(name)}"
        yield relation(ours, "GENERATED_FROM", ROOT)
        for part in sorted(parts, key=lambda part: part.name):
            kind = "STATIC_LINK" if part.archives else "CONTAINS"
            yield relation(ours, kind, f"SPDXRef-Package-{name_for(part.name)}")


def parts_of(programs):
    """Returns the components of all programs, each once, by name."""
    return [part for _, part in sorted({part.name: part for _, parts in programs.values()
                                        for part in parts}.items())]


def document(version, architecture, created, programs, system):
    """Returns the document. `programs` are {name: (content, components)}. `created` is in ISO 8601,
    UTC. `system` is the ID in os-release of the packages' system."""
    parts = parts_of(programs)
    body = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"ddprun-{version}-{architecture}",
        "creationInfo": {"created": created, "creators": [f"Tool: ddprun-{version}"]},
        "packages": [own_package(version), *(package(part, system) for part in parts)],
        "files": [file_entry(name, content) for name, (content, _) in sorted(programs.items())],
        "relationships": list(relations(programs)),
        "hasExtractedLicensingInfos": list(map(license_info, parts)),
    }
    unique = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body, sort_keys=True))
    return body | {"documentNamespace": f"urn:uuid:{unique}"}


def notices(programs, licenses):
    """Returns the notices as one text. `licenses` are {name: text} of what they refer to."""
    parts = [f"==== {part.name} {part.version}\n\n{text_of(part).strip()}\n"
             for part in parts_of(programs)]
    parts += [f"==== licence {name}\n\n{text.strip()}\n" for name, text in licenses.items()]
    return "\n".join([HEAD, *parts])


def named_sources(body):
    """Returns the names of the packages that a document has, without ddprun's own."""
    return {one["name"] for one in body["packages"] if one["SPDXID"] != ROOT}
