//! Main memory: how much is free, for the machine and for the container that this process runs in, and the
//! peak of this process.
//!
//! A container's limit is its control group's or that of a group above it, whichever is lower, of either
//! version of control groups.

use std::path::Path;

/// Where control groups are found.
const GROUPS: &str = "/sys/fs/cgroup";

/// The files of a memory group: its limit, what it uses, and what of it is cache that goes when memory is
/// wanted.
struct Files {
    limit: &'static str,
    used: &'static str,
    cache: &'static str,
}

const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", cache: "total_inactive_file" };
const VERSION_2: Files = Files { limit: "memory.max", used: "memory.current", cache: "inactive_file" };

/// Half of the free memory, shared by the ranks of this machine.
pub fn default_bytes(local_world: usize) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = number(&text, "MemAvailable:").unwrap_or(2 << 20) * 1024;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let free = container_free(&own, Path::new(GROUPS)).map_or(machine, |container| container.min(machine));
    free / 2 / local_world.max(1) as u64
}

/// What the control groups of this process leave it, if one of them has a limit. `own`: `/proc/self/cgroup`.
fn container_free(own: &str, groups: &Path) -> Option<u64> {
    let free = own.lines().filter_map(|line| {
        // number:controllers:path; version 2 has the number 0 and names no controllers.
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "" => least_free(groups, path, &VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                least_free(&groups.join("memory"), path, &VERSION_1)
            }
            _ => None,
        }
    });
    free.min()
}

/// The least that a group or one above it leaves. Within a container the path may be the host's: then only
/// the topmost folder is there, which is the container's own.
fn least_free(root: &Path, path: &str, files: &Files) -> Option<u64> {
    let own = root.join(path.trim_start_matches('/'));
    own.ancestors()
        .take_while(|folder| folder.starts_with(root))
        .filter_map(|folder| free(folder, files))
        .min()
}

fn free(folder: &Path, files: &Files) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    // No limit is the word `max`, or a number that no machine has.
    let limit: u64 = read(files.limit)?.trim().parse().ok()?;
    let used: u64 = read(files.used)?.trim().parse().ok()?;
    let cache = read("memory.stat").and_then(|text| number(&text, files.cache)).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

/// The most main memory that this process has had since [`forget_peak`].
pub(super) fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    number(&status, "VmHWM:").unwrap_or(0) * 1024
}

/// Linux: writing 5 there resets the peak. Where that is not allowed the peak only grows, and the limit comes
/// sooner.
pub(super) fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The number behind a word at the beginning of a line.
fn number(text: &str, word: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix([' ', '\t']));
    line?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const GB: u64 = 1 << 30;

    fn group(folder: &Path, files: &Files, limit: &str, used: u64, cache: u64) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(files.limit), format!("{limit}\n")).unwrap();
        fs::write(folder.join(files.used), format!("{used}\n")).unwrap();
        fs::write(folder.join("memory.stat"), format!("{0}_x 7\nanon 5\n{0} {cache}\n", files.cache))
            .unwrap();
    }

    #[test]
    fn the_lowest_limit_of_a_group_and_those_above_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = "0::/pods/mine/main\n";
        assert_eq!(container_free(own, root), None);
        group(&root.join("pods/mine/main"), &VERSION_2, "max", 2 * GB, 0);
        assert_eq!(container_free(own, root), None, "no limit");
        group(&root.join("pods/mine"), &VERSION_2, &(8 * GB).to_string(), 3 * GB, GB);
        assert_eq!(container_free(own, root), Some(6 * GB));
        group(&root.join("pods"), &VERSION_2, &(100 * GB).to_string(), 99 * GB, 0);
        assert_eq!(container_free(own, root), Some(GB));
        group(&root.join("pods"), &VERSION_2, &GB.to_string(), 2 * GB, 0);
        assert_eq!(container_free(own, root), Some(0));
        assert_eq!(container_free("0::/\n", root), None);
    }

    #[test]
    fn version_1_has_a_folder_per_controller_and_containers_see_their_own_as_its_top() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = "12:cpu,cpuacct:/docker/abc\n7:memory:/docker/abc\n0::/docker/abc\nnonsense\n";
        group(&root.join("memory"), &VERSION_1, &(4 * GB).to_string(), GB, 0);
        assert_eq!(container_free(own, root), Some(3 * GB));
        group(&root.join("memory/docker/abc"), &VERSION_1, &(2 * GB).to_string(), GB, GB / 2);
        assert_eq!(container_free(own, root), Some(3 * GB / 2));
        // What stands for no limit there is more than any machine has.
        group(&root.join("memory"), &VERSION_1, "9223372036854771712", GB, 0);
        assert_eq!(container_free(own, root), Some(3 * GB / 2));
    }

    #[test]
    fn a_rank_gets_its_share_of_half_of_what_is_free() {
        let (alone, shared) = (default_bytes(1), default_bytes(4));
        assert!(alone > 0 && shared <= alone, "{shared} of {alone}");
    }
}
