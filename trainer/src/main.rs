//! `forebay-train`: see the library of the same name.

/// What arrives comes and goes by the megabyte: glibc gives its pages back to the kernel each time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    forebay_train::main()
}
