//! Gives the binary a run path to libtorch, so that it runs without `LD_LIBRARY_PATH` (which still overrides
//! it).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(lib) = std::env::var("DEP_FOREBAY_C10D_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
