//! Gives the programs of the feature `gpu` a run path to libtorch, as trainer/build.rs does for the trainer.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(lib) = std::env::var("DEP_FOREBAY_C10D_LIBTORCH_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}
