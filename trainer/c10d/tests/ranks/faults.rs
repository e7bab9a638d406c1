//! Peers that die, stay silent or disagree, and arguments that cannot work.

use std::time::{Duration, Instant};

use forebay_c10d::{Ddp, DdpSettings, Op, ProcessGroup, Result, Store, zero_grads};
use tch::Tensor;

use crate::training::{batch, loss, model, part};
use crate::{Finished, SHORT_TIMEOUT, TIMEOUT, run, run_well, say};

/// Trains until the peer's death shows; the rank itself then ends well, having said what it saw.
pub fn death(group: &ProcessGroup) -> Result<()> {
    let (vs, net) = model(group.rank(), 64);
    let parameters = vs.trainable_variables();
    let ddp = Ddp::new(group, &parameters, &[], &DdpSettings::default())?;
    let step = |number: i64| -> Result<()> {
        let (x, y) = batch(number);
        zero_grads(&parameters, true)?;
        let local = ddp.forward(|| loss(&net, &part(&x, group), &part(&y, group)))?;
        ddp.backward(&local)
    };
    for number in 0..100 {
        if group.rank() == 1 && number == 3 {
            std::process::exit(9);
        }
        if let Err(error) = step(number) {
            say(format!("{} {:?} {error}", error.peer_lost(), error.missing));
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn a_peer_that_dies_is_named_within_seconds() {
    let finished = run("death", 3);
    assert_eq!(finished[1].output.status.code(), Some(9));
    for rank in [0, 2] {
        let said = finished[rank].said();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with(&format!("true [1] rank {rank} of 3: ")), "{said:?}");
        assert!(said[0].ends_with("; rank 1 gave no sign of life"), "{said:?}");
        assert!(finished[rank].seconds < 30.0, "took {} s", finished[rank].seconds);
    }
}

pub fn silent(group: &ProcessGroup) -> Result<()> {
    if group.rank() == 1 {
        // Alive, and busy with something else until the other has given up.
        group.store().wait(&["given up"], TIMEOUT)?;
        return Ok(());
    }
    let error = group.barrier().unwrap_err();
    say(format!("{} {error}", error.peer_lost()));
    group.store().set("given up", b"")
}

#[test]
fn a_peer_that_does_not_come_is_named_after_the_timeout() {
    let said = run_well("silent", 2);
    assert!(said[0].len() == 1 && said[0][0].starts_with("true rank 0 of 2: barrier: "), "{said:?}");
    assert!(said[0][0].ends_with("; rank 1 had not come to it"), "{said:?}");
}

/// One collective with a timeout of its own, shorter than the group's.
pub fn late(group: &ProcessGroup) -> Result<()> {
    let mut value = Tensor::from_slice(&[1f32]);
    if group.rank() == 0 {
        let error = group.recv(&mut value, 1, 0).unwrap_err();
        say(format!("{} {error}", error.peer_lost()));
        group.store().set("given up", b"")?;
    } else {
        group.store().wait(&["given up"], TIMEOUT)?;
    }
    Ok(())
}

#[test]
fn a_message_that_does_not_come_is_an_error() {
    let said = run_well("late", 2);
    assert!(said[0].len() == 1 && said[0][0].starts_with("true rank 0 of 2: recv: "), "{said:?}");
}

/// A collective that nobody waits for, and that a peer never comes to.
pub fn abandoned(group: &ProcessGroup) -> Result<()> {
    if group.rank() == 1 {
        return group.store().wait(&["given up"], TIMEOUT);
    }
    let (mut value, began) = (Tensor::from_slice(&[1f32]), Instant::now());
    drop(group.all_reduce_async(&mut value, Op::Sum)?);
    let waited = began.elapsed();
    say(format!("{} {}", waited >= SHORT_TIMEOUT / 2, waited < TIMEOUT));
    say(group.barrier().is_err());
    group.store().set("given up", b"")
}

#[test]
fn work_that_is_dropped_is_not_waited_for_beyond_the_timeout() {
    assert_eq!(run_well("abandoned", 2)[0], ["true true", "true"]);
}

/// One rank works for longer than the group's timeout; another one dies over its work.
pub fn only(group: &ProcessGroup) -> Result<()> {
    let work = || {
        std::thread::sleep(2 * SHORT_TIMEOUT);
        group.rank()
    };
    say(format!("{:?}", group.only(0, work)?));
    group.barrier()?;
    let error = group.only(1, || std::process::exit(9)).unwrap_err();
    say(format!("{:?} {error}", error.missing));
    Ok(())
}

#[test]
fn a_rank_at_work_is_waited_for_while_it_lives() {
    let finished = run("only", 3);
    assert_eq!(finished[1].output.status.code(), Some(9));
    assert_eq!(finished[1].said(), ["None"]);
    for (rank, done) in [(0, "Some(0)"), (2, "None")] {
        let said = finished[rank].said();
        assert!(said.len() == 2 && said[0] == done, "{said:?}");
        assert!(said[1].starts_with(&format!("[1] rank {rank} of 3: wait for one rank: ")), "{said:?}");
        assert!(said[1].ends_with("; rank 1 gave no sign of life"), "{said:?}");
    }
}

/// Rank 1 freezes; rank 0 waits for something that no operation of the group is.
pub fn frozen(group: &ProcessGroup) -> Result<()> {
    group.barrier()?;
    if group.rank() == 1 {
        let stop = format!("kill -STOP {0}; (sleep 12; kill -KILL {0}) &", std::process::id());
        let _ = std::process::Command::new("sh").args(["-c", &stop]).status();
    }
    group.watch(Duration::from_secs(2), |lost| {
        say(format!("{} {:?} {lost}", lost.peer_lost(), lost.missing));
        forebay_c10d::exit(5)
    });
    std::thread::sleep(TIMEOUT);
    Ok(())
}

#[test]
fn a_frozen_rank_is_noticed_by_those_who_watch() {
    let finished = run("frozen", 3);
    for rank in [0, 2] {
        let said = finished[rank].said();
        assert_eq!(finished[rank].output.status.code(), Some(5), "{said:?}");
        let expected =
            format!("true [1] rank {rank} of 3: watch over the ranks: rank 1 gave no sign of life");
        assert_eq!(said, [expected]);
    }
}

pub fn shapes(group: &ProcessGroup) -> Result<()> {
    let (vs, _net) = model(group.rank(), 64 + group.rank() as i64);
    match Ddp::new(group, &vs.trainable_variables(), &[], &DdpSettings::default()) {
        Ok(_) => say("accepted"),
        Err(error) => say(error),
    }
    Ok(())
}

#[test]
fn parameters_of_different_shapes_are_refused() {
    let said = run("shapes", 2).iter().flat_map(Finished::said).collect::<Vec<_>>();
    assert!(said.iter().all(|line| line != "accepted"), "{said:?}");
    assert!(
        said.iter().any(|line| line.contains("make the reducer: ") && line.contains("params[0]")),
        "{said:?}"
    );
}

pub fn refusals(group: &ProcessGroup) -> Result<()> {
    let mut integers = Tensor::from_slice(&[1i64]);
    say(group.all_reduce(&mut integers, Op::Avg).unwrap_err());
    say(group.broadcast(&mut integers, 1).unwrap_err());
    say(group.all_reduce(&mut Tensor::new(), Op::Sum).unwrap_err());
    say(Ddp::new(group, &[], &[], &DdpSettings::default()).unwrap_err());
    let frozen = [Tensor::from_slice(&[1f32])];
    say(Ddp::new(group, &frozen, &[], &DdpSettings::default()).unwrap_err());
    Ok(())
}

#[test]
fn bad_arguments_are_errors_that_name_the_operation() {
    let said = run_well("refusals", 1).remove(0);
    assert_eq!(
        said,
        [
            "rank 0 of 1: all_reduce: an average wants floating point, not Long",
            "rank 0 of 1: broadcast: root 1 is not below the world size 1",
            "rank 0 of 1: all_reduce: the tensor is undefined",
            "rank 0 of 1: make the reducer: the model has no parameters",
            "rank 0 of 1: make the reducer: a parameter is not a leaf that requires a gradient",
        ]
    );
}

#[test]
fn a_rank_outside_the_world_is_refused() {
    let store = Store::serve(1, TIMEOUT).unwrap();
    let error = ProcessGroup::gloo(store, 2, 2, TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "rank: 2 is not below the world size 2");
}
