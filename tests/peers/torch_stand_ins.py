"""Makes PyTorch's CUDA wheel importable without CUDA: writes stand-ins for the libraries that torch links and, on a
processor alone, never calls. Each has the soname and the versioned symbols that torch's own libraries ask for.

    torch_stand_ins.py SITE OUT    SITE holds torch/, OUT gets the libraries: for LD_LIBRARY_PATH
"""

import collections
import pathlib
import subprocess
import sys

from elftools.elf.elffile import ELFFile

# The prefix of a library's soname, and of its symbols. Symbols that torch asks for without a version are matched by these.
LIBRARIES = {
    "libcusparseLt": ("cusparseLt",),
    "libcusparse": (),
    "libcufft": (),
    "libcufile": ("cuFile",),
    "libnccl": ("nccl", "pnccl"),
    "libcurand": ("curand",),
    "libcublas": (),
    "libcudnn": ("cudnn",),
    "libnvshmem_host": ("nvshmem",),
}

TORCH = ["torch_cuda", "torch_python", "c10_cuda", "torch_cpu", "torch", "torch_nvshmem", "torch_global_deps", "c10"]


def main(site: pathlib.Path, out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    versioned = collections.defaultdict(lambda: collections.defaultdict(set))
    needed, loose = set(), set()
    for name in TORCH:
        path = site / f"torch/lib/lib{name}.so"
        if path.exists():
            read(path, needed, versioned, loose)
    for soname in sorted(needed):
        write(out, soname, versioned[soname], loose)


def read(path, needed, versioned, loose):
    """Adds what one of torch's libraries needs: sonames, symbols by soname and version, symbols without a version."""
    with open(path, "rb") as file:
        elf = ELFFile(file)
        for tag in elf.get_section_by_name(".dynamic").iter_tags():
            if tag.entry.d_tag == "DT_NEEDED" and tag.needed.startswith(tuple(LIBRARIES)):
                needed.add(tag.needed)
        versions = {}
        section = elf.get_section_by_name(".gnu.version_r")
        for library, entries in section.iter_versions() if section else ():
            versions.update((entry["vna_other"], (library.name, entry.name)) for entry in entries)
        indices = elf.get_section_by_name(".gnu.version")
        for at, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
            if symbol["st_shndx"] != "SHN_UNDEF":
                continue
            library, version = versions.get(indices.get_symbol(at)["ndx"] if indices else None, (None, None))
            if library is None:
                loose.add(symbol.name)
            elif library.startswith(tuple(LIBRARIES)):
                versioned[library][version].add(symbol.name)


def write(out, soname, versions, loose):
    prefixes = next(prefixes for library, prefixes in LIBRARIES.items() if soname.startswith(library))
    names = {name for names in versions.values() for name in names}
    names |= {name for name in loose if prefixes and name.startswith(prefixes)}
    source, script = out / f"{soname}.c", out / f"{soname}.map"
    source.write_text("".join(f"int {name}(void){{return 3;}}\n" for name in sorted(names)))
    script.write_text(
        "".join(f"{version} {{ global: {' '.join(f'{n};' for n in sorted(v))} }};\n" for version, v in versions.items())
    )
    map_file = [f"-Wl,--version-script={script}"] if versions else []
    shared = ["cc", "-shared", "-fPIC", "-w", "-o", str(out / soname), str(source), f"-Wl,-soname,{soname}"]
    subprocess.run([*shared, *map_file], check=True)
    source.unlink()
    script.unlink()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
