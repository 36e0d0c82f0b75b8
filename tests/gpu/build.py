"""Compiles the fake CUDA runtime for the torch that is installed.

Functions with results are written by hand, in C. All other functions that torch's libraries call, which ``nm`` lists,
are generated: they succeed and do nothing, or make a handle, or count as a launch.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent
SOURCES = [HERE / "runtime.c", HERE / "libraries.c"]
LIBRARIES = ["torch_cuda", "c10_cuda", "torch_python", "torch_cuda_linalg"]
ASKED = re.compile(r" U ((?:__)?(?:cuda|cublas|cusolver|cudnn|cusparse|cufft|nccl)[A-Z]\w*)")
DRIVER = re.compile(r"CUDAAPI (cu[A-Z]\w+)\(|#define +cu[A-Z]\w+ +(?:__CUDA_API_PTSZ\(|__CUDA_API_PTDS\()?(cu[A-Z]\w+)")
WRITTEN = re.compile(r" T (\w+)")
# Some wheels lack this file, of which the types need a few macros.
MACROS = "\n".join(f"#define {name}" for name in ("__host__", "__device__", "__device_builtin__", "CUDARTAPI"))
MACROS += "\n#define __align__(n) __attribute__((aligned(n)))\n#define __builtin_align__(n) __align__(n)\n"
MACROS += "#define __device_builtin_texture_type__\n#define __device_builtin_surface_type__\n"


def obstacle() -> str:
    """The reason why the runtime cannot be compiled here; empty if it can."""
    missing = [tool for tool in ("gcc", "nm") if shutil.which(tool) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is no build for CUDA"
    return "" if _headers() else f"there are no headers of CUDA {torch.version.cuda}"


def build(cache: Path) -> Path:
    """The compiled library, from the folder ``cache`` if it was compiled there before."""
    sources = b"".join(path.read_bytes() for path in [*SOURCES, Path(__file__)])
    name = f"fake_cuda_{torch.__version__}_{hashlib.sha256(sources).hexdigest()[:16]}"
    library = cache / name / "libcuda.so.1"  # Triton links with a file of this name
    if not library.exists():
        library.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            os.replace(_compile(Path(folder)), library)
    return library


def _headers() -> Path | None:
    """The folder with the types of torch's CUDA, of torch's wheels or of this machine."""
    assert torch.version.cuda is not None
    packages = Path(torch.__file__).parents[1] / "nvidia"
    for folder in [*sorted(packages.glob("*/include")), Path("/usr/local/cuda/include")]:
        header = folder / "cuda_runtime_api.h"
        major = re.search(r"#define CUDART_VERSION +(\d+)\d{3}", header.read_text()) if header.exists() else None
        if major and major[1] == torch.version.cuda.split(".")[0]:
            return folder
    return None


def _compile(folder: Path) -> Path:
    assert torch.version.cuda is not None
    (folder / "crt").mkdir()
    (folder / "crt" / "host_defines.h").write_text(MACROS)
    major, minor = map(int, torch.version.cuda.split("."))
    gcc = ["gcc", "-std=gnu11", "-w", "-O1", "-fPIC", f"-I{_headers()}", f"-I{folder}"]
    gcc.append(f"-DCUDA_VERSION_OF_TORCH={1000 * major + 10 * minor}")
    objects = []
    for source in SOURCES:
        objects.append(folder / f"{source.stem}.o")
        _run(*gcc, "-c", source, "-o", objects[-1])
    written = set(WRITTEN.findall(_run("nm", *objects)))
    libraries = [Path(torch.__file__).parent / "lib" / f"lib{name}.so" for name in LIBRARIES]
    asked = set(ASKED.findall(_run("nm", "-D", "--undefined-only", *(path for path in libraries if path.exists()))))
    headers = _headers()
    assert headers is not None
    asked |= {name for names in DRIVER.findall((headers / "cuda.h").read_text()) for name in names if name}
    rest = folder / "rest.c"
    rest.write_text(
        "int fake_cuda_handle(); int fake_cuda_compute();\n" + "\n".join(map(_other, sorted(asked - written)))
    )
    library = folder / "fake_cuda.so"
    # Libraries that open the driver get this library, which is loaded already.
    _run(*gcc, "-shared", rest, *objects, "-o", library, "-lpthread", "-lrt", "-Wl,-soname,libcuda.so.1")
    return library


def _other(name: str) -> str:
    """The C text of a function that is not written by hand."""
    if "Create" in name:
        return f"int {name}(void **made) {{ return fake_cuda_handle(made); }}"
    passive = re.search(r"Destroy|Set|Get|_bufferSize|^cublasLt", name)
    if name.startswith(("cublas", "cusolverDn")) and not passive:
        return f"int {name}(void *handle) {{ return fake_cuda_compute(handle); }}"
    return f"int {name}(void) {{ return 0; }}"


def _run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr[-2000:]}")
    return done.stdout
