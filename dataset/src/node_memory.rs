//! How much memory a node takes unless told otherwise: a part of what this process may use.

use std::path::Path;

/// Of a machine of 8 to 16 GiB.
const USUAL_BYTES: u64 = 2 << 30;

/// At most: the page cache, which serves the files of the disk cache, needs the rest more.
const LIMIT_BYTES: u64 = 8 << 30;

/// At least: less serves nobody.
const LEAST_BYTES: u64 = 64 << 20;

/// An eighth of the machine's memory, or of what its control group allows, between 2 GiB and 8 GiB; but a
/// quarter of it at most.
pub fn default_bytes() -> u64 {
    let machine = total(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let allowed = group_limit(&groups, Path::new("/sys/fs/cgroup"));
    share(machine.into_iter().chain(allowed).min())
}

fn share(memory_bytes: Option<u64>) -> u64 {
    memory_bytes.map_or(USUAL_BYTES, |bytes| {
        (bytes / 8).clamp(USUAL_BYTES, LIMIT_BYTES).min(bytes / 4).max(LEAST_BYTES)
    })
}

/// `MemTotal` of proc(5), which is in kB.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kb| kb << 10)
}

/// The least that any of the groups above a process allows (cgroups(7), version 2 and 1). Files that are not
/// there, and `max`, set no limit.
fn group_limit(groups: &str, root: &Path) -> Option<u64> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|c| c == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let limit = std::fs::read_to_string(root.join(group).join(file)).ok();
            limits.extend(limit.and_then(|text| text.trim().parse::<u64>().ok()));
        }
    }
    limits.into_iter().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_within_bounds() {
        let of = |gib: u64| share(Some(gib << 30)) >> 20;
        assert_eq!([1000, 32, 16, 8, 4, 0].map(of), [8192, 4096, 2048, 2048, 1024, 64]);
        assert_eq!(share(None), USUAL_BYTES);
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16 kB\n"), Some(16 << 10));
        assert!((LEAST_BYTES..=LIMIT_BYTES).contains(&default_bytes()));
    }

    #[test]
    fn the_least_of_all_groups_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "5000\n");
        write("memory/c/memory.limit_in_bytes", "4000\n");
        let limit = |groups: &str| group_limit(groups, folder.path());
        assert_eq!(limit("0::/a/b\n"), Some(5000));
        assert_eq!(limit("3:cpu:/a\n2:hugetlb,memory:/c\n0::/a\n"), Some(4000));
        assert_eq!(limit("0::/\nnonsense\n"), None);
    }
}
