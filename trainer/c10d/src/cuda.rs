//! GPUs: the plugin `libforebay_c10d_nccl.so`, and NCCL for the tensors on them.
//!
//! A program built here links libtorch's CPU part alone and so runs on machines without CUDA. On others,
//! [`Cuda::load`] opens the plugin, which brings libtorch's CUDA part with it; tch sees the GPUs from then
//! on. Load it before the first question about CUDA, for a single GPU too: libtorch remembers the answer.
//!
//! NCCL's own settings are its variables (`NCCL_BUFFSIZE`, `NCCL_ALGO`, `NCCL_PROTO`, `NCCL_SOCKET_IFNAME`,
//! `NCCL_DEBUG`, ..), which it reads when a group is made; those of c10d's wrapper are `TORCH_NCCL_..`.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ffi::{NcclSettings, Plugin, milliseconds};
use crate::group::ProcessGroup;

/// Names the plugin's file, if it does not lie beside the program.
pub const PLUGIN_VARIABLE: &str = "FOREBAY_NCCL_PLUGIN";

/// The plugin's file name.
pub const PLUGIN_FILE: &str = "libforebay_c10d_nccl.so";

/// Where a program in `target/release` finds a plugin that `make nccl` has built.
const BUILT: &str = "../nccl/release";

static LOADED: OnceLock<Plugin> = OnceLock::new();

/// Proof that CUDA is there: the plugin is open, and there is at least one GPU.
#[derive(Debug, Clone, Copy)]
pub struct Cuda {
    plugin: &'static Plugin,
    devices: usize,
}

impl Cuda {
    /// Opens the plugin that `FOREBAY_NCCL_PLUGIN` names, or that lies beside the program. Later calls find
    /// it open.
    ///
    /// Fails when there is no such file, when a library that it needs is missing (the message names it), when
    /// it was built for another program or libtorch, and when there is no GPU.
    pub fn load() -> Result<Self> {
        let failed = |text: &str| Error::new("load CUDA", None, text);
        let plugin = match LOADED.get() {
            Some(plugin) => plugin,
            None => {
                let path = find().map_err(|text| failed(&text))?;
                let opened = Plugin::open(&path).map_err(|failure| failed(&explain(&path, &failure.text)))?;
                LOADED.get_or_init(|| opened)
            }
        };
        let devices =
            plugin.device_count().map_err(|failure| failed(&format!("no CUDA device: {}", failure.text)))?;
        Ok(Self { plugin, devices })
    }

    /// How many GPUs the process sees (`CUDA_VISIBLE_DEVICES` limits them).
    pub fn devices(&self) -> usize {
        self.devices
    }

    /// Has a group use NCCL for the tensors on the GPU `device`, which becomes the thread's current one;
    /// tensors in main memory go on using Gloo. Takes every rank. Two ranks need two GPUs: NCCL refuses to
    /// share.
    ///
    /// NCCL waits for the other ranks without a limit: let [`ProcessGroup::watch`] look after them before.
    ///
    /// Collectives on the GPU are queued on its streams, so most of their failures show later: NCCL's
    /// watchdog, a thread of libtorch's, ends the process when one has not finished within `timeout`.
    pub fn nccl(
        &self,
        group: &ProcessGroup,
        device: usize,
        timeout: Duration,
        settings: &NcclSettings,
    ) -> Result<()> {
        let (store, timeout_ms) = (&group.store().handle, milliseconds(timeout));
        let added = self.plugin.add_nccl(group.handle(), store, device, timeout_ms, settings);
        group.named("join the group by NCCL", added)
    }
}

/// The plugin's path.
fn find() -> std::result::Result<PathBuf, String> {
    if let Some(given) = std::env::var_os(PLUGIN_VARIABLE) {
        let path = PathBuf::from(given);
        let missing = || format!("no plugin at {PLUGIN_VARIABLE}={}", path.display());
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let program =
        std::env::current_exe().map_err(|error| format!("find this program's own file: {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = [folder.join(PLUGIN_FILE), folder.join(BUILT).join(PLUGIN_FILE)];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        format!(
            "no {PLUGIN_FILE} in {}: build it by `make nccl`, or name it in {PLUGIN_VARIABLE}",
            folder.display()
        )
    })
}

/// What to do about a plugin that does not open.
fn explain(path: &Path, text: &str) -> String {
    let advice = if text.contains("cannot open shared object file") {
        ": install CUDA's libraries (the nvidia wheels that torch depends on), or name their folders in LD_LIBRARY_PATH"
    } else {
        ""
    };
    format!("{}: {text}{advice}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_what_to_do() {
        let text = "libcusparse.so.12: cannot open shared object file: No such file or directory";
        let explained = explain(Path::new("/p.so"), text);
        assert!(explained.starts_with("/p.so: libcusparse.so.12: ") && explained.contains("LD_LIBRARY_PATH"));
        assert_eq!(explain(Path::new("/p.so"), "it has no x"), "/p.so: it has no x");
    }

    #[test]
    fn without_a_plugin_there_is_no_cuda() {
        // The tests' own folder holds none, and the variable is not set here.
        if std::env::var_os(PLUGIN_VARIABLE).is_none() {
            let error = Cuda::load().unwrap_err().to_string();
            assert!(error.starts_with(&format!("load CUDA: no {PLUGIN_FILE} in ")), "{error}");
        }
    }

    #[test]
    fn what_is_no_plugin_is_refused() {
        let own = std::env::current_exe().unwrap();
        assert!(Plugin::open(&own).is_err());
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let error = Plugin::open(&text).unwrap_err();
        assert!(error.text.contains("Cargo.toml"), "{error:?}");
    }
}
