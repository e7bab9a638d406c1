//! The command `forebay`; see `forebay_client::cli`.

fn main() -> std::process::ExitCode {
    forebay_client::cli::main()
}
