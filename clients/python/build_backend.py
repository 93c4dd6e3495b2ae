"""Builds the wheel of a package with the standard library alone (PEP 517, PEP 660).

The usual backends are downloaded for a build. A package here is a folder of Python files, so a wheel is a zip of them.
`clients/asgi` has a link to this file, and the packages have links to the license texts, which each copy must contain.
"""

import base64
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from pathlib import Path

# A frontend calls from the folder of the package.
ROOT = Path.cwd()
SOURCE = ROOT / "src"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def field(name):
    """Returns a text field of `[project]`."""
    return re.search(rf'^{name} = "(.*)"$', PROJECT, re.M).group(1)


NAME, VERSION = field("name"), field("version")
DEPENDENCIES = re.findall('"(.*?)"', re.search(r"^dependencies = \[(.*?)\]", PROJECT, re.M | re.S).group(1))
FILES = f"{NAME.replace('-', '_')}-{VERSION}"
INFO = f"{FILES}.dist-info"
WHEEL = f"{FILES}-py3-none-any.whl"
LICENSES = ["LICENSE-APACHE", "LICENSE-MIT"]


def metadata():
    requires = "".join(f"Requires-Dist: {dependency}\n" for dependency in DEPENDENCIES)
    licenses = "".join(f"License-File: {name}\n" for name in LICENSES)
    head = f"""Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: {field("description")}
License: {field("license")}
{licenses}Requires-Python: {field("requires-python")}
{requires}Classifier: Typing :: Typed
Description-Content-Type: text/markdown

"""
    return head + (ROOT / "README.md").read_text(encoding="utf-8")


def write_wheel(folder, files):
    """Writes a wheel of `files`, a dictionary of contents by name, and returns its name."""
    files = {
        **files,
        **{f"{INFO}/{name}": (ROOT / name).read_bytes() for name in LICENSES},
        f"{INFO}/METADATA": metadata().encode(),
        f"{INFO}/WHEEL": b"Wheel-Version: 1.0\nGenerator: weirgate\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{INFO}/RECORD"] = f"{record}{INFO}/RECORD,,\n".encode()
    with zipfile.ZipFile(Path(folder) / WHEEL, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            # A fixed date, so that the same files make the same wheel.
            wheel.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return WHEEL


def digest(data):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def sources():
    files = (path for path in SOURCE.rglob("*") if path.suffix == ".py" or path.name == "py.typed")
    return {path.relative_to(SOURCE).as_posix(): path.read_bytes() for path in sorted(files)}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, sources())


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, {f"{NAME}.pth": f"{SOURCE}\n".encode()})


def build_sdist(sdist_directory, config_settings=None):
    names = ["pyproject.toml", "build_backend.py", "README.md", *LICENSES, *(f"src/{name}" for name in sources())]
    files = {name: (ROOT / name).read_bytes() for name in names} | {"PKG-INFO": metadata().encode()}
    packed = Path(sdist_directory) / f"{FILES}.tar.gz"
    with open(packed, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as data:
        with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(f"{FILES}/{name}")
                # As in the wheel.
                entry.size, entry.mtime = len(content), 1577836800
                archive.addfile(entry, io.BytesIO(content))
    return packed.name
