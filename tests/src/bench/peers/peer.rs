//! The subjects: ourselves, and each peer in each way that it can be asked for an epoch.

/// Epochs that a process reads. The first one is cold in the process, the later ones are warm.
pub const EPOCHS: u32 = 3;

/// Row groups that are permuted together, by all that permute row groups.
pub const WINDOW: u32 = 16;

/// Where a subject's epochs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerSource {
    /// Files on this machine, in the page cache; a node of ours has them on its disk.
    Local,
    /// The slow S3, without a cache of its own or with an empty one.
    S3,
    /// A caching proxy before the slow S3, empty at first.
    Nginx,
}

/// Its part in the comparison with the best peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is ours, and what the best peer is compared with.
    Ours,
    /// The same as from another host: by TCP. The best peer is compared with it as well.
    OursByTcp,
    /// It is our package of Python, and what the best peer in Python is compared with.
    OursInPython,
    /// It may be the best peer.
    Rival,
    /// Its figures are told, and no more: an order that it offers beside a shuffled one, or epochs from S3.
    Told,
}

/// One subject.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// In the report: `peers.SHAPE.NAME`.
    pub name: &'static str,
    /// The script of `tests/peers`, which has an environment of the same name; none: our own reader.
    pub script: Option<&'static str>,
    pub shuffle: bool,
    pub workers: u32,
    pub source: PeerSource,
    pub epochs: u32,
    pub standing: Standing,
    /// It passes every row through Python by itself, so it reads fewer rows.
    pub by_rows: bool,
    /// It reads a format of its own.
    pub converts: bool,
}

const OURS: Peer = Peer {
    name: "",
    script: None,
    shuffle: false,
    workers: 0,
    source: PeerSource::Local,
    epochs: EPOCHS,
    standing: Standing::Told,
    by_rows: false,
    converts: false,
};

/// One epoch in order, with which a node is filled.
pub const FILLING: Peer = Peer { epochs: 1, ..OURS };

const fn ours(name: &'static str, shuffle: bool, standing: Standing) -> Peer {
    Peer { name, shuffle, standing, ..OURS }
}

const fn peer(name: &'static str, script: &'static str, shuffle: bool, standing: Standing) -> Peer {
    Peer { name, script: Some(script), shuffle, standing, ..OURS }
}

impl Peer {
    /// Whether it is one of those that our package of Python is compared with: it feeds a training loop in
    /// Python with tensors, or with what becomes tensors without a copy, from a local copy.
    pub fn is_in_python(&self) -> bool {
        let loaders = ["torch_dataloader", "hugging_face", "lit_data", "mosaic"];
        self.source == PeerSource::Local && self.script.is_some_and(|script| loaders.contains(&script))
    }

    /// Whether it is asked to go on in the middle of an epoch.
    pub fn is_resumed(&self) -> bool {
        self.is_in_python() || self.standing == Standing::OursInPython
    }

    /// Whether it is ours: it may not break off.
    pub fn is_ours(&self) -> bool {
        self.script.is_none() || self.standing == Standing::OursInPython
    }

    const fn workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    /// What it is when it reads S3: epochs after the first one say something only if it keeps anything.
    const fn from(self, source: PeerSource, epochs: u32) -> Self {
        Self { source, epochs, ..self }
    }

    const fn by_rows(self) -> Self {
        Self { by_rows: true, ..self }
    }

    const fn converts(self) -> Self {
        Self { converts: true, by_rows: true, ..self }
    }
}

/// All, in the order of a round.
pub const ALL: [Peer; 25] = [
    ours("forebay.sequential", false, Standing::Told),
    ours("forebay.window16", true, Standing::Ours),
    ours("forebay.tcp.window16", true, Standing::OursByTcp),
    peer("forebay_python.window16", "forebay_torch", true, Standing::OursInPython),
    peer("pyarrow_dataset", "pyarrow_dataset", false, Standing::Rival),
    peer("pyarrow.sequential", "pyarrow_loader", false, Standing::Told),
    peer("pyarrow.window16", "pyarrow_loader", true, Standing::Rival),
    peer("torch.0.sequential", "torch_dataloader", false, Standing::Told),
    peer("torch.0.window16", "torch_dataloader", true, Standing::Rival),
    peer("torch.2.sequential", "torch_dataloader", false, Standing::Told).workers(2),
    peer("torch.2.window16", "torch_dataloader", true, Standing::Rival).workers(2),
    // Its shuffle is of 10,000 rows at most, no peer of windows. In order it is faster: the harder rival.
    peer("hugging_face.sequential", "hugging_face", false, Standing::Rival),
    peer("hugging_face.buffer", "hugging_face", true, Standing::Told).by_rows(),
    peer("litdata.0.shuffled", "lit_data", true, Standing::Rival).converts(),
    peer("litdata.2.shuffled", "lit_data", true, Standing::Rival).workers(2).converts(),
    peer("mosaic.0.shuffled", "mosaic", true, Standing::Rival).converts(),
    peer("mosaic.2.shuffled", "mosaic", true, Standing::Rival).workers(2).converts(),
    ours("s3.forebay.window16", true, Standing::Told).from(PeerSource::S3, EPOCHS),
    peer("s3.nginx_pyarrow.window16", "pyarrow_loader", true, Standing::Rival)
        .from(PeerSource::Nginx, EPOCHS),
    peer("s3.duckdb.sequential", "duck_db", false, Standing::Rival).from(PeerSource::S3, EPOCHS),
    peer("s3.pyarrow_dataset", "pyarrow_dataset", false, Standing::Told).from(PeerSource::S3, 1),
    peer("s3.pyarrow.window16", "pyarrow_loader", true, Standing::Told).from(PeerSource::S3, 1),
    peer("s3.hugging_face.sequential", "hugging_face", false, Standing::Told).from(PeerSource::S3, 1),
    peer("s3.torchconnector.0", "s3_torch_connector", false, Standing::Told).from(PeerSource::S3, 1),
    peer("s3.torchconnector.2", "s3_torch_connector", false, Standing::Told)
        .workers(2)
        .from(PeerSource::S3, 1),
];

#[test]
fn names_are_literal_and_one_of_each_kind_is_compared() {
    let names: std::collections::BTreeSet<_> = ALL.iter().map(|peer| peer.name).collect();
    assert_eq!(names.len(), ALL.len());
    for standing in [Standing::Ours, Standing::OursByTcp, Standing::OursInPython] {
        assert_eq!(ALL.iter().filter(|peer| peer.standing == standing).count(), 1);
    }
    let in_python = ALL.iter().filter(|peer| peer.is_in_python()).map(|peer| peer.name);
    assert_eq!(
        in_python.collect::<Vec<_>>().join(" "),
        "torch.0.sequential torch.0.window16 torch.2.sequential torch.2.window16 hugging_face.sequential \
         hugging_face.buffer litdata.0.shuffled litdata.2.shuffled mosaic.0.shuffled mosaic.2.shuffled"
    );
    let of_one_epoch = ALL.iter().filter(|peer| peer.epochs == 1);
    assert!(of_one_epoch.into_iter().all(|peer| peer.standing == Standing::Told), "one epoch is never warm");
}

#[test]
fn each_script_has_a_list_of_its_own_environment() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    for script in ALL.iter().filter_map(|peer| peer.script) {
        let list = std::fs::read_to_string(folder.join(script).with_extension("txt")).expect(script);
        assert!(list.lines().all(|line| line.contains("==")), "{script} has versions that are not pinned");
    }
}
