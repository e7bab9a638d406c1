//! Collectives, and messages between two ranks.

use std::time::Duration;

use forebay_c10d::{Op, ProcessGroup, Result};
use tch::Tensor;

use crate::{floats, run_well, say};

pub fn values(group: &ProcessGroup) -> Result<()> {
    let mine = || Tensor::from_slice(&[group.rank() as f32 + 1.0, 10.0]);
    for op in [Op::Sum, Op::Avg, Op::Min, Op::Max, Op::Product] {
        let mut tensor = mine();
        group.all_reduce(&mut tensor, op)?;
        say(format!("{op:?} {:?}", floats(&tensor)));
    }
    let mut tensor = Tensor::from_slice(&[group.rank() as i64 * 7]);
    group.broadcast(&mut tensor, 1)?;
    say(format!("broadcast {}", tensor.int64_value(&[0])));
    say(format!("integers {:?}", group.all_gather_i64(&[group.rank() as i64, i64::MIN])?));
    let bytes = vec![group.rank() as u8; group.rank() * 3];
    say(format!("bytes {:?}", group.all_gather_bytes(&bytes)?));
    say(format!("nothing {:?}", group.all_gather_bytes(&[])?));
    // Nobody passes the barrier before the last has come.
    if group.rank() == 1 {
        std::thread::sleep(Duration::from_millis(300));
        group.store().set("came", b"")?;
    }
    group.barrier()?;
    say(format!("barrier {}", group.store().contains("came")?));
    Ok(())
}

#[test]
fn collectives_give_every_rank_the_right_values() {
    for said in run_well("collectives", 2) {
        assert_eq!(
            said,
            [
                "Sum [3.0, 20.0]",
                "Avg [1.5, 10.0]",
                "Min [1.0, 10.0]",
                "Max [2.0, 10.0]",
                "Product [2.0, 100.0]",
                "broadcast 7",
                &format!("integers {:?}", [[0, i64::MIN], [1, i64::MIN]]),
                "bytes [[], [1, 1, 1]]",
                "nothing [[], []]",
                "barrier true",
            ]
        );
    }
}

/// What gives each rank a part, or one rank all.
pub fn parts(group: &ProcessGroup) -> Result<()> {
    let rank = group.rank() as f32;
    let input = Tensor::from_slice(&[1f32, 2., 3., 4., 5., 6.]).view([6, 1]) + f64::from(rank);
    for op in [Op::Sum, Op::Avg] {
        let part = group.reduce_scatter(&input, op)?;
        say(format!("{op:?} {:?} {:?}", part.size(), floats(&part.view(-1))));
    }
    say(group.reduce_scatter(&input.narrow(0, 0, 4), Op::Sum).unwrap_err());
    let mine = Tensor::from_slice(&[rank]);
    let all = group.all_gather(&mine)?;
    say(format!("all {:?}", all.iter().map(floats).collect::<Vec<_>>()));
    let gathered = group.gather(&mine, 2)?;
    say(format!("gathered {:?}", gathered.map(|all| all.iter().map(floats).collect::<Vec<_>>())));
    Ok(())
}

#[test]
fn each_rank_gets_its_part() {
    for (rank, said) in run_well("parts", 3).iter().enumerate() {
        let sums: Vec<f32> = (0..2).map(|row| 3.0 * (rank * 2 + row + 1) as f32 + 3.0).collect();
        let means: Vec<f32> = sums.iter().map(|sum| sum / 3.0).collect();
        let all = [[0f32], [1.], [2.]];
        assert_eq!(
            *said,
            [
                format!("Sum [2, 1] {sums:?}"),
                format!("Avg [2, 1] {means:?}"),
                format!(
                    "rank {rank} of 3: reduce_scatter: [4, 1] has no rows that 3 ranks could share evenly"
                ),
                format!("all {all:?}"),
                format!("gathered {:?}", (rank == 2).then_some(all)),
            ]
        );
    }
}

/// Messages between two ranks, and a collective that runs beside other work.
pub fn pairs(group: &ProcessGroup) -> Result<()> {
    let mut here = Tensor::from_slice(&[group.rank() as i64 + 5]);
    if group.rank() == 0 {
        group.send(&here, 1, 7)?;
        group.recv(&mut here, 1, 8)?;
    } else {
        let mut there = Tensor::from_slice(&[0i64]);
        group.recv(&mut there, 0, 7)?;
        group.send(&(there * 10), 0, 8)?;
    }
    say(format!("has {}", here.int64_value(&[0])));

    let mut sum = Tensor::from_slice(&[1f32 + group.rank() as f32]);
    if group.rank() == 1 {
        group.store().get("go")?;
    }
    let work = group.all_reduce_async(&mut sum, Op::Avg)?;
    if group.rank() == 0 {
        group.store().set("go", b"")?;
    }
    work.wait_for(Duration::from_secs(15))?;
    say(format!("mean {:?}", floats(&sum)));
    say(group.send(&sum, 2, 0).unwrap_err());
    Ok(())
}

#[test]
fn two_ranks_pass_messages_and_work_may_wait() {
    let said = run_well("pairs", 2);
    assert_eq!(said[0][..2], ["has 50", "mean [1.5]"]);
    assert_eq!(said[1][..2], ["has 6", "mean [1.5]"]);
    assert_eq!(said[0][2], "rank 0 of 2: send: receiver 2 is not below the world size 2");
}

/// Collectives that nobody waits for: their tensors are whole when the borrow ends.
pub fn dropped(group: &ProcessGroup) -> Result<()> {
    let mut sum = Tensor::from_slice(&[1f32 + group.rank() as f32; 1 << 16]);
    let mut sent = Tensor::from_slice(&[group.rank() as i64 + 3]);
    if group.rank() == 1 {
        group.store().get("go")?;
        std::thread::sleep(Duration::from_millis(300));
    }
    let work = group.all_reduce_async(&mut sum, Op::Avg)?;
    if group.rank() == 0 {
        group.store().set("go", b"")?;
    }
    drop(work);
    say(format!("mean {}", sum.eq(1.5).all().int64_value(&[]) == 1));
    drop(group.broadcast_async(&mut sent, 0)?);
    say(format!("sent {}", sent.int64_value(&[0])));
    Ok(())
}

#[test]
fn work_that_is_dropped_is_through_all_the_same() {
    let said = run_well("dropped", 2);
    assert_eq!(said[0], ["mean true", "sent 3"]);
    assert_eq!(said[1], ["mean true", "sent 3"]);
}
