"""Writes an image of one program as an archive that has the layout of OCI, and beside it the list that `docker load` reads.

The image is made of the given files alone: there is no shell. The same files make the same bytes.
"""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import PurePosixPath

# Of no user that a machine has, so also without a list of users.
USER = 65532
MANIFEST, INDEX = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"
CONFIG, LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
# The names of OCI.
ARCHITECTURES = {"arm64": "arm64", "x86_64": "amd64"}


def tar(files, date, programs=(), owned=()):
    """Returns a tar of `files`, contents by path, with their folders. Folders of `owned` are of the image's user."""
    packed = io.BytesIO()
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents} - {"."}
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted({*folders, *owned, *files}):
            entry = tarfile.TarInfo(name)
            entry.mtime = date
            if name in files:
                entry.size, entry.mode = len(files[name]), 0o755 if name in programs else 0o644
                archive.addfile(entry, io.BytesIO(files[name]))
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                entry.uid = entry.gid = USER if name in owned else 0
                archive.addfile(entry)
    return packed.getvalue()


def gzipped(data):
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:
        file.write(data)
    return packed.getvalue()


def described(kind, data, **more):
    return {"mediaType": kind, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data), **more}


def image(tag, architecture, files, date, config, programs, owned=()):
    """Returns the archive of an image. `config` is what a container of it begins with."""
    layer = tar(files, date, programs, owned)
    packed = gzipped(layer)
    created = "1980-01-01T00:00:00Z"
    text = lambda value: json.dumps(value, sort_keys=True).encode()
    settings = text({
        "created": created,
        "architecture": ARCHITECTURES[architecture],
        "os": "linux",
        "config": {"User": f"{USER}:{USER}", "WorkingDir": "/", **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "scripts/image.py"}],
    })
    descriptors = {"config": described(CONFIG, settings), "layers": [described(LAYER, packed)]}
    manifest = text({"schemaVersion": 2, "mediaType": MANIFEST, **descriptors})
    names = {"org.opencontainers.image.ref.name": tag.rpartition(":")[2], "io.containerd.image.name": f"docker.io/library/{tag}"}
    platform = {"architecture": ARCHITECTURES[architecture], "os": "linux"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [described(MANIFEST, manifest, platform=platform, annotations=names)]}
    blob = lambda data: f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"
    blobs = {blob(data): data for data in (settings, packed, manifest)}
    docker = [{"Config": blob(settings), "RepoTags": [tag], "Layers": [blob(packed)]}]
    layout = {"oci-layout": text({"imageLayoutVersion": "1.0.0"}), "index.json": text(index), "manifest.json": text(docker)}
    return tar({**blobs, **layout}, date)
