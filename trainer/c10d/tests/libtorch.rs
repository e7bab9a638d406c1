//! The build script's check of `$LIBTORCH`: an error names the file that is missing or wrong, and says what
//! to do.

#[path = "../build/libtorch.rs"]
mod libtorch;

use std::path::Path;

fn folder(name: &str, version: Option<&str>) -> std::path::PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    for file in ["include/ATen/ATen.h", "lib/libtorch_cpu.so"] {
        std::fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
        std::fs::write(dir.join(file), "").unwrap();
    }
    if let Some(version) = version {
        std::fs::write(dir.join("version.py"), format!("x = 1\n__version__ = '{version}'\ncuda = '13'\n"))
            .unwrap();
    }
    dir
}

fn check(dir: &Path) -> Result<std::path::PathBuf, String> {
    libtorch::check(Some(dir.to_str().unwrap()))
}

#[test]
fn the_wanted_version_passes_whatever_its_build() {
    for version in ["2.11.0", "2.11.0+cu130", "2.11.0+cpu"] {
        let dir = folder("right", Some(version));
        assert_eq!(check(&dir), Ok(dir));
    }
}

#[test]
fn another_version_is_named_beside_the_wanted_one() {
    for version in ["2.13.0+cu130", "2.11.1", "2.11.00"] {
        let message = check(&folder("wrong", Some(version))).unwrap_err();
        assert!(message.contains(&format!("is libtorch {version}, but 2.11.0 is wanted")), "{message}");
        assert!(message.contains("make setup") && message.lines().count() == 1, "{message}");
    }
}

#[test]
fn a_missing_libtorch_is_said_to_be_missing() {
    for unset in [None, Some("")] {
        assert!(libtorch::check(unset).unwrap_err().starts_with("LIBTORCH is not set"));
    }
    let message = libtorch::check(Some("/nowhere/torch")).unwrap_err();
    assert!(message.starts_with("no libtorch at LIBTORCH=/nowhere/torch"), "{message}");
    let message = check(&folder("empty", None)).unwrap_err();
    assert!(message.contains("version.py") && message.contains("make setup"), "{message}");
}

#[test]
fn a_torn_install_is_refused() {
    let dir = folder("torn", Some("2.11.0"));
    std::fs::remove_file(dir.join("lib/libtorch_cpu.so")).unwrap();
    assert!(check(&dir).unwrap_err().contains("lacks lib/libtorch_cpu.so"));
}
