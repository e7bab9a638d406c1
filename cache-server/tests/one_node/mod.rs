//! A node in this process, and a dataset that it has opened.

use forebay_proto::Result;
use forebay_proto::manifest::Manifest;
use forebay_proto::v1;
use forebay_proto::v1::cache_client::CacheClient;
use forebay_server::{Server, Settings};
use std::path::Path;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

pub struct OneNode {
    pub manifest: Manifest,
    pub channel: Channel,
    stop: CancellationToken,
    running: JoinHandle<Result<()>>,
    _folders: [TempDir; 2],
}

impl OneNode {
    /// Of the dataset that `write` puts into a folder, in segments of `segment_bytes` bytes at most.
    pub async fn start(write: impl FnOnce(&Path), segment_bytes: u64) -> Self {
        let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(folder.path());
        let uri = format!("file://{}", folder.path().display());
        let settings = Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            cache_dir: vec![cache.path().to_owned()],
            cache_bytes: 1 << 28,
            memory_bytes: 1 << 28,
            allow: vec![uri.clone()],
            ..Settings::default()
        };
        let server = Server::bind(settings).await.unwrap();
        let address = format!("http://{}", server.address());
        let stop = CancellationToken::new();
        let running = tokio::spawn(server.run(stop.clone()));
        let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
        let spec = v1::DatasetSpec { uri, segment_bytes, ..Default::default() };
        let request = v1::OpenRequest { dataset: Some(spec), ..Default::default() };
        let reply = CacheClient::new(channel.clone()).open(request).await.unwrap().into_inner();
        let manifest = Manifest::try_from(reply.manifest.unwrap()).unwrap();
        Self { manifest, channel, stop, running, _folders: [folder, cache] }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap().unwrap();
    }
}
