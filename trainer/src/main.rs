//! `forebay-train`: see the library of the same name.

fn main() -> std::process::ExitCode {
    forebay_train::main()
}
