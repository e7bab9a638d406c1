//! Checks `$LIBTORCH` and CUDA's headers, then compiles the plugin's C++. No GPU and no CUDA toolkit are
//! needed: the headers come from small wheels (`scripts/setup.sh nccl`), nccl.h is in `vendor/`, and of
//! cuBLAS, cuSPARSE and cuSOLVER, whose wheels are big, libtorch's headers want only names of types, which
//! `stubs/` declares.

use std::path::{Path, PathBuf};

#[path = "../c10d/build/libtorch.rs"]
mod libtorch;

/// Where `scripts/setup.sh nccl` puts the headers, from this folder.
const HEADERS: &str = "../../.nccl/nvidia/cu13/include";

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    println!("cargo::rerun-if-env-changed=FOREBAY_CUDA_HEADERS");
    for path in ["build.rs", "shim", "stubs", "vendor", "../c10d/build", "../c10d/shim"] {
        println!("cargo::rerun-if-changed={path}");
    }
    if let Err(message) = build() {
        println!("cargo::error={message}");
    }
}

fn build() -> Result<(), String> {
    let torch = libtorch::check(std::env::var("LIBTORCH").ok().as_deref())?;
    let given = std::env::var_os("FOREBAY_CUDA_HEADERS").map(PathBuf::from);
    let headers = given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(HEADERS));
    // cuda_runtime.h and its like came with libtorch.
    let runtime = torch.join("../nvidia/cu13/include");
    for (folder, needed) in
        [(&headers, "crt/host_config.h"), (&headers, "nv/target"), (&runtime, "cuda_runtime.h")]
    {
        if !folder.join(needed).exists() {
            return Err(format!(
                "no {needed} in {}: run `scripts/setup.sh nccl`, or name the folder of CUDA 13's headers in FOREBAY_CUDA_HEADERS",
                folder.display()
            ));
        }
    }
    cc::Build::new()
        .cpp(true)
        .pic(true)
        .warnings(false)
        .std("c++17")
        .include(torch.join("include"))
        .include(torch.join("include/torch/csrc/api/include"))
        .include("stubs")
        .include("vendor")
        .include("../c10d/shim")
        .include(&headers)
        .include(&runtime)
        .define("USE_C10D_NCCL", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .define("GLOG_USE_GLOG_EXPORT", None)
        .file("shim/nccl.cpp")
        .compile("forebay_c10d_nccl_shim");

    let lib = torch.join("lib");
    println!("cargo::rustc-link-search=native={}", lib.display());
    for name in ["torch_cuda", "c10_cuda", "torch_cpu", "c10"] {
        println!("cargo::rustc-link-lib={name}");
    }
    // The run path of a program is not handed down to what it opens. LD_LIBRARY_PATH overrides it.
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // Anything still undefined would only be found out on a machine with a GPU.
    println!("cargo::rustc-link-arg=-Wl,-z,defs");
    Ok(())
}
