"""Makes `import torch` work from the CUDA wheel where there is no CUDA: for tests on the CPU.

    torch_stand_ins.py SITE OUT

SITE holds the unpacked wheel, without the gigabytes of CUDA libraries that it names and that nothing on the CPU calls.
For each of these a stand-in comes into OUT: a shared library with its name and the symbols, with their versions, that
torch's own libraries refer to. Put OUT on LD_LIBRARY_PATH.
"""

import collections
import pathlib
import subprocess
import sys

from elftools.elf.elffile import ELFFile

LIBRARIES = {
    "libcublas": ("cublas",),
    "libcudnn": ("cudnn",),
    "libcufft": ("cufft",),
    "libcufile": ("cuFile",),
    "libcurand": ("curand",),
    "libcusparse": ("cusparse",),
    "libcusparseLt": ("cusparseLt",),
    "libnccl": ("nccl", "pnccl"),
    "libnvshmem_host": ("nvshmem",),
}
OURS = ("libcublas", "libcudnn", "libcufft", "libcufile", "libcurand", "libcusparse", "libnccl", "libnvshmem_host")
TORCH = ("torch_cuda", "torch_python", "c10_cuda", "torch_cpu", "torch", "torch_nvshmem", "torch_global_deps", "c10")


def main(site: pathlib.Path, out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    # Library -> version -> symbols; libraries; symbols without a version; symbols that torch defines itself.
    versioned: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    needed: set[str] = set()
    loose: set[str] = set()
    defined: set[str] = set()
    for name in TORCH:
        path = site / f"torch/lib/lib{name}.so"
        if path.exists():
            read(path, versioned, needed, loose, defined)
    known = {symbol for versions in versioned.values() for symbols in versions.values() for symbol in symbols}
    loose -= defined | known
    for library in sorted(needed):
        make(out, library, versioned[library], loose)


def read(path, versioned, needed, loose, defined) -> None:
    with path.open("rb") as file:
        elf = ELFFile(file)
        for tag in elf.get_section_by_name(".dynamic").iter_tags():
            if tag.entry.d_tag == "DT_NEEDED" and tag.needed.startswith(OURS):
                needed.add(tag.needed)
        versions = {}
        for wanted, entries in getattr(elf.get_section_by_name(".gnu.version_r"), "iter_versions", list)():
            versions |= {entry["vna_other"]: (wanted.name, entry.name) for entry in entries}
        of_symbol = elf.get_section_by_name(".gnu.version")
        for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if symbol["st_shndx"] != "SHN_UNDEF":
                defined.add(symbol.name)
                continue
            library, version = versions.get(of_symbol.get_symbol(number)["ndx"] if of_symbol else None, ("", ""))
            if library.startswith(OURS):
                versioned[library][version].add(symbol.name)
            elif symbol.name.startswith(("cu", "nccl", "nvshmem")):
                loose.add(symbol.name)


def make(out: pathlib.Path, library: str, versions: dict[str, set[str]], loose: set[str]) -> None:
    names = {symbol for symbols in versions.values() for symbol in symbols}
    prefixes = LIBRARIES.get(library.split(".so")[0], ())
    names |= {symbol for symbol in loose if prefixes and symbol.startswith(prefixes)}
    source, script = out / f"{library}.c", out / f"{library}.map"
    source.write_text("".join(f"int {name}(void){{return 3;}}\n" for name in sorted(names)))
    arguments = []
    if versions:
        text = (f"{version} {{ global: {''.join(f'{s}; ' for s in sorted(s))} }};" for version, s in versions.items())
        script.write_text("\n".join(text))
        arguments = [f"-Wl,--version-script={script}"]
    command = ["cc", "-shared", "-fPIC", "-w", "-o", out / library, source, f"-Wl,-soname,{library}", *arguments]
    subprocess.run(command, check=True)
    source.unlink()
    script.unlink(missing_ok=True)


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
