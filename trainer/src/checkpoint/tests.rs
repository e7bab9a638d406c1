use std::path::Path;
use std::time::Duration;

use forebay_c10d::{ProcessGroup, Store};
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::manifest::Digest;
use forebay_proto::plan::{PlanKey, Shuffle};
use forebay_proto::state::LoaderState;
use tch::{Device, Kind, Tensor};

use super::disk::{Damage, read, write};
use super::state::NamedTensors;
use super::*;
use crate::train::hyperparams::Hyperparams;
use crate::train::optim::OptimizerSettings;
use crate::train::precision::Precision;

fn identity() -> Identity {
    Identity {
        columns: vec!["image".to_owned(), "label".to_owned()],
        model: "convnet".into(),
        dataset: "s3://b/d".into(),
        manifest_digest: "07".into(),
        seed: 5,
        shuffle: "window(4)".into(),
    }
}

fn checkpoint(step: u64) -> Checkpoint {
    let key = PlanKey { manifest: Digest(7), seed: 5, epoch: 1, shuffle: Shuffle::Window(4) };
    let state = LoaderState { key, samples_done: step * 100, tokens_done: None };
    let mut digest = OrderDigest::default();
    digest.add(step, 3);
    let mut seen = EpochSeen::none(1);
    seen.add(step * 100, step, Digests { order: digest, content: None }, 0.1).unwrap();
    let weights = vec![
        ("a.weight".to_owned(), Tensor::arange(6, (Kind::Float, Device::Cpu)).view([2, 3]) + step as f64),
        ("a.bias".to_owned(), Tensor::from_slice(&[1.5f32]).to_kind(Kind::BFloat16)),
        ("steps".to_owned(), Tensor::from(step as i64)),
        ("none".to_owned(), Tensor::zeros([0], (Kind::Float, Device::Cpu))),
    ];
    let training = vec![("a.weight.momentum".to_owned(), Tensor::ones([2, 3], (Kind::Double, Device::Cpu)))];
    let meta = Meta::new(identity(), step, &state, vec![EpochSeen::none(0), seen], (2, 100)).unwrap();
    Checkpoint { meta, weights, training }
}

fn same(a: &Checkpoint, b: &Checkpoint) {
    assert_eq!(a.meta, b.meta);
    for (a, b) in [(&a.weights, &b.weights), (&a.training, &b.training)] {
        assert_eq!(a.len(), b.len());
        for (name, tensor) in a {
            let (_, other) = b.iter().find(|(other, _)| other == name).unwrap();
            assert_eq!((tensor.kind(), tensor.size()), (other.kind(), other.size()), "{name}");
            assert!(tensor.equal(other), "{name}");
        }
    }
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let one = checkpoint(12);
    let place = write(folder.path(), &one).unwrap();
    assert!(place.ends_with("step-0000000012"));
    same(&read(&place).unwrap(), &one);
    assert_eq!(one.meta.state().unwrap().samples_done, 1200);
    assert_eq!(EpochSeen::find(&one.meta.epochs, 1).samples, 1200);
    assert_eq!(EpochSeen::find(&one.meta.epochs, 9).samples, 0);
    // Once more, in its place.
    same(&read(&write(folder.path(), &one).unwrap()).unwrap(), &one);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn how_a_run_learnt_is_kept_and_need_not_be() {
    use crate::train::schedule::{Schedule, Shape};
    let folder = tempfile::tempdir().unwrap();
    let old = checkpoint(1);
    let place = write(folder.path(), &old).unwrap();
    // As the first builds wrote it.
    assert!(!std::fs::read_to_string(place.join("checkpoint.json")).unwrap().contains("settings"));
    same(&read(&place).unwrap(), &old);
    let settings = Hyperparams {
        optimizer: OptimizerSettings::AdamW {
            betas: (0.9, 0.99),
            eps: 1e-8,
            weight_decay: 0.1,
            decay_all: true,
        },
        schedule: Schedule { lr: 0.3, shape: Shape::Cosine, warmup_steps: Some(4), steps: 90 },
        clip_norm: Some(2.0),
        accumulate: 3,
        precision: Precision::Bf16,
    };
    let new = Checkpoint { meta: checkpoint(2).meta.with(Some(settings)), ..checkpoint(2) };
    same(&read(&write(folder.path(), &new).unwrap()).unwrap(), &new);
}

#[test]
fn every_kind_of_damage_is_found_and_the_one_before_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let before = checkpoint(1);
    write(folder.path(), &before).unwrap();
    let newest = || Folder::open(folder.path()).unwrap().newest(&identity()).unwrap().unwrap().meta.step;
    for file in ["weights.safetensors", "training.safetensors", "checkpoint.json", "CHECKSUMS"] {
        let place = write(folder.path(), &checkpoint(2)).unwrap();
        assert_eq!(newest(), 2);
        let good = std::fs::read(place.join(file)).unwrap();
        let wrong = |bytes: &[u8]| {
            std::fs::write(place.join(file), bytes).unwrap();
            assert!(matches!(read(&place), Err(Damage::Damaged(_))), "{file}");
        };
        for at in (0..good.len()).step_by(7) {
            let mut bad = good.clone();
            bad[at] ^= 4;
            wrong(&bad);
        }
        wrong(&good[..good.len() - 2]);
        wrong(&[]);
        assert_eq!(newest(), 1);
        std::fs::remove_file(place.join(file)).unwrap();
        assert!(matches!(read(&place), Err(Damage::Damaged(_))), "{file}");
    }
    std::fs::write(folder.path().join("step-0000000001/checkpoint.json"), "").unwrap();
    let error = Folder::open(folder.path()).unwrap().newest(&identity()).unwrap_err().to_string();
    assert!(error.starts_with("all 2 checkpoints in ") && error.ends_with("--fresh"), "{error}");
}

#[test]
fn what_cannot_be_read_now_is_neither_damaged_nor_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &checkpoint(1)).unwrap();
    for file in ["weights.safetensors", "checkpoint.json", "CHECKSUMS"] {
        let place = write(folder.path(), &checkpoint(2)).unwrap().join(file);
        std::fs::remove_file(&place).unwrap();
        // Reading there is an I/O error (EIO), as from a disk or a server that fails.
        std::os::unix::fs::symlink("/proc/self/mem", &place).unwrap();
        let error = Folder::open(folder.path()).unwrap().newest(&identity()).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("step-0000000002 cannot be read now: try again") && error.contains(file),
            "{error}"
        );
        assert!(error.ends_with("(os error 5)"), "{error}");
    }
}

#[test]
fn a_run_it_does_not_belong_to_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &checkpoint(1)).unwrap();
    let refused = |change: &dyn Fn(&mut Identity)| {
        let mut run = identity();
        change(&mut run);
        format!("{:#}", Folder::open(folder.path()).unwrap().newest(&run).unwrap_err())
    };
    let model = refused(&|run| run.model = "gpt".into());
    assert!(model.contains("it is of the model convnet, but this run has the model gpt"), "{model}");
    let columns = refused(&|run| run.columns.reverse());
    assert!(
        columns.contains("the columns image, label, but this run has the columns label, image"),
        "{columns}"
    );
    let dataset = refused(&|run| run.dataset = "s3://b/e".into());
    assert!(dataset.contains("the dataset s3://b/d, but this run has the dataset s3://b/e"), "{dataset}");
    let version = refused(&|run| run.manifest_digest = "08".into());
    assert!(version.contains("version 07, but this run has the dataset version 08"), "{version}");
    let seed = refused(&|run| run.seed = 6);
    assert!(seed.contains("it is of --seed 5, but this run has --seed 6"), "{seed}");
    assert!(refused(&|run| run.shuffle = "full".into()).contains("shuffle window(4), but"));

    let mut other = checkpoint(3);
    other.meta.format = 2;
    write(folder.path(), &other).unwrap();
    let format = refused(&|_| {});
    assert!(format.contains("it has format 2 (written by forebay-train"), "{format}");
}

#[test]
fn a_folder_keeps_the_newest_and_has_one_owner() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/b");
    let folder = Folder::open(&path).unwrap();
    assert!(folder.newest(&identity()).unwrap().is_none() && folder.set_aside().unwrap().is_none());
    let taken = Folder::open_within(&path, Duration::ZERO).unwrap_err().to_string();
    assert!(taken.contains("is in use by another run"), "{taken}");
    let mut writer = Writer::new(folder, 2);
    for step in [5, 7, 30, 40] {
        writer.begin(checkpoint(step)).unwrap();
    }
    assert!(writer.finish().unwrap().unwrap().ends_with("step-0000000040"));
    assert!(writer.finish().unwrap().is_none());
    drop(writer);

    std::fs::create_dir(path.join(".writing-step-0000000050")).unwrap();
    std::fs::create_dir(path.join("step-7")).unwrap();
    let folder = Folder::open(&path).unwrap();
    assert_eq!(folder.steps().unwrap(), [40, 30]);
    assert!(!path.join(".writing-step-0000000050").exists());
    // A newer one that a run passed over as damaged does not push out what the run writes.
    let mut writer = Writer::new(folder, 1);
    writer.begin(checkpoint(35)).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let folder = Folder::open(&path).unwrap();
    assert_eq!(folder.steps().unwrap(), [40, 35]);
    assert!(folder.set_aside().unwrap().unwrap().ends_with("before-1"));
    assert!(folder.newest(&identity()).unwrap().is_none());
    assert!(path.join("before-1/step-0000000040").is_dir());
}

#[test]
fn a_run_is_the_same_while_one_of_its_agents_is_there() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::open(root.path()).unwrap();
    let agents = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let begun = |names: &[&str]| folder.is_begun_by(&agents(names)).unwrap();
    assert!(!begun(&["a"]) && !begun(&[]));
    folder.note_agents(&agents(&["a"]), false).unwrap();
    assert!(begun(&["b", "a"]) && !begun(&["b"]));
    // One joins, and the first leaves.
    folder.note_agents(&agents(&["a", "b"]), true).unwrap();
    assert!(begun(&["b"]) && begun(&["a"]));
    // Another run.
    folder.note_agents(&agents(&["c"]), false).unwrap();
    assert!(begun(&["c"]) && !begun(&["a", "b"]));
    assert!(folder.steps().unwrap().is_empty());
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("file"), "").unwrap();
    assert!(Folder::open(&root.path().join("file")).is_err());
    let mut writer = Writer::new(Folder::open(&root.path().join("gone")).unwrap(), 3);
    std::fs::remove_dir_all(root.path().join("gone")).unwrap();
    std::fs::write(root.path().join("gone"), "").unwrap();
    assert!(writer.begin(checkpoint(1)).is_err());
    let error = write(&root.path().join("file"), &checkpoint(1)).unwrap_err().to_string();
    assert!(error.starts_with("write the checkpoint ") && error.contains("step-0000000001"), "{error}");
}

#[test]
fn state_goes_back_into_living_tensors_only_if_it_fits() {
    let living: NamedTensors = vec![("w".into(), Tensor::zeros([2], (Kind::Float, Device::Cpu)))];
    let saved = snapshot(vec![("w".into(), Tensor::from_slice(&[1f32, 2.0]))]);
    restore("parameter", &living, &saved).unwrap();
    assert_eq!(Vec::<f32>::try_from(&living[0].1).unwrap(), [1.0, 2.0]);
    let error = |from: &NamedTensors| restore("parameter", &living, from).unwrap_err().to_string();
    assert_eq!(error(&vec![]), "the checkpoint lacks parameter `w`");
    let larger: NamedTensors = vec![("w".into(), Tensor::zeros([3], (Kind::Float, Device::Cpu)))];
    assert_eq!(error(&larger), "parameter `w` has the shape [3] in the checkpoint, but [2] in this run");
    let more: NamedTensors = vec![("v".into(), Tensor::zeros([3], (Kind::Float, Device::Cpu)))];
    assert_eq!(error(&more), "the checkpoint has parameter `v`, this run has not");
}

#[test]
fn a_snapshot_is_a_copy_and_weights_that_are_not_finite_are_not_kept() {
    let weight = Tensor::arange(6, (Kind::Float, Device::Cpu)).view([2, 3]);
    let taken = snapshot(vec![("w".into(), weight.shallow_clone()), ("t".into(), weight.transpose(0, 1))]);
    let _ = weight.shallow_clone().fill_(f64::NAN);
    assert_eq!(Vec::<f32>::try_from(taken[0].1.flatten(0, -1)).unwrap(), [0., 1., 2., 3., 4., 5.]);
    assert_eq!(Vec::<f32>::try_from(taken[1].1.flatten(0, -1)).unwrap(), [0., 3., 1., 4., 2., 5.]);
    assert!(taken[1].1.is_contiguous());

    let folder = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(Folder::open(folder.path()).unwrap(), 3);
    writer.begin(Checkpoint { weights: vec![("w".into(), weight)], ..checkpoint(4) }).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(
        error.starts_with("step 4: `w` is not finite any more") && error.ends_with("--clip-norm"),
        "{error}"
    );
    assert!(writer.finish().unwrap().is_none());
    drop(writer);
    assert!(Folder::open(folder.path()).unwrap().steps().unwrap().is_empty());
}

#[test]
fn all_ranks_get_what_rank_0_read() {
    let timeout = Duration::from_secs(30);
    let store = Store::serve(2, timeout).unwrap();
    let port = store.port().unwrap();
    let rank = |rank: usize| {
        move || {
            let store = Store::tcp("127.0.0.1", port, 2, false, timeout).unwrap();
            let group = ProcessGroup::gloo(store, rank, 2, timeout).unwrap();
            assert!(share(&group, None).unwrap().is_none());
            let got = share(&group, (rank == 0).then(|| checkpoint(9))).unwrap().unwrap();
            same(&got, &checkpoint(9));
            group.barrier().unwrap();
        }
    };
    let threads = [0, 1].map(|number| std::thread::spawn(rank(number)));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_digest_is_the_sum_of_the_stretches() {
    let path = Path::new("unused");
    assert!(!path.exists());
    let mut parts = [OrderDigest::default(); 2];
    parts[0].add(1, 2);
    parts[1].add(3, 4);
    let mut whole = parts[0];
    whole.merge(parts[1]);
    let mut seen = EpochSeen::none(0);
    let mut values = [ContentDigest::default(); 2];
    values[0].add(b"first");
    values[1].add(b"second");
    let stretch = |part: usize| Digests { order: parts[part], content: Some(values[part]) };
    seen.add(1, 1, stretch(0), 1.0).unwrap();
    seen.add(1, 1, stretch(1), 2.0).unwrap();
    assert_eq!((seen.digest().unwrap(), seen.samples, seen.loss_sum), (whole, 2, 3.0));
    let mut content = values[0];
    content.merge(values[1]);
    assert_eq!(seen.content_digest.as_deref(), Some(content.to_string().as_str()));
    // Of an epoch that was not verified from its beginning there is none.
    seen.add(1, 1, Digests { content: None, ..stretch(0) }, 1.0).unwrap();
    assert_eq!(seen.content_digest, None);
    seen.add(1, 1, stretch(1), 1.0).unwrap();
    assert_eq!(seen.content_digest, None);
}
