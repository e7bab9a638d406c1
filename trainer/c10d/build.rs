//! Checks `$LIBTORCH`, then compiles the C++ shim against it.
//!
//! Nothing here waits for torch-sys (this crate does not depend on it directly), so a missing or wrong
//! libtorch is reported within a second, in one line, before torch-sys has got far with its own compilation.

use std::path::Path;

#[path = "build/libtorch.rs"]
mod libtorch;

fn main() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    for path in ["build.rs", "build", "shim", "src/ffi.rs"] {
        println!("cargo::rerun-if-changed={path}");
    }
    let dir = match libtorch::check(std::env::var("LIBTORCH").ok().as_deref()) {
        Ok(dir) => dir,
        Err(message) => {
            println!("cargo::error={message}");
            return;
        }
    };
    println!("cargo::rerun-if-changed={}", dir.join("version.py").display());
    compile(&dir.join("include"));

    let lib = dir.join("lib");
    println!("cargo::rustc-link-search=native={}", lib.display());
    println!("cargo::rustc-link-lib=torch_cpu");
    println!("cargo::rustc-link-lib=c10");
    // The run path of this crate's own tests. A binary that depends on the crate prints the same line from
    // its build script, with the folder that it finds in DEP_FOREBAY_C10D_LIBTORCH_LIB.
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    println!("cargo::metadata=libtorch_lib={}", lib.display());
}

fn compile(include: &Path) {
    cxx_build::bridge("src/ffi.rs")
        .pic(true)
        .warnings(false)
        .std("c++17")
        .include(include)
        .include(include.join("torch/csrc/api/include"))
        .include("shim")
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .define("GLOG_USE_GLOG_EXPORT", None)
        .file("shim/shim.cpp")
        .compile("forebay_c10d_shim");
}
