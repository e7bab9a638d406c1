use super::*;
use futures::FutureExt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

#[tokio::test]
async fn waiters_are_served_in_order() {
    let (semaphore, demand) = (PrioritySemaphore::new(10), Urgency::demand());
    let a = semaphore.acquire(6, &demand).await;
    let mut heavy = Box::pin(semaphore.acquire(8, &demand));
    let mut light = Box::pin(semaphore.acquire(1, &demand));
    assert!((&mut heavy).now_or_never().is_none() && semaphore.is_short());
    assert!((&mut light).now_or_never().is_none(), "nobody overtakes");
    assert!(semaphore.try_acquire(1).is_none());
    assert_eq!(semaphore.free(), 0, "it is others' turn");
    drop(a);
    let permits = (heavy.await, light.await);
    assert_eq!((semaphore.used(), semaphore.free(), permits.0.weight()), (9, 1, 8));
    drop(permits);
    assert_eq!((semaphore.used(), semaphore.is_short()), (0, false));
}

#[tokio::test]
async fn demands_go_first_and_so_does_a_waiter_that_becomes_one() {
    let (semaphore, demand) = (PrioritySemaphore::new(10), Urgency::demand());
    let all = semaphore.acquire(10, &demand).await;
    let (early, late) = (Urgency::prefetch(), Urgency::prefetch());
    let mut first = Box::pin(semaphore.acquire(10, &early));
    let mut raised = Box::pin(semaphore.acquire(10, &late));
    let mut wanted = Box::pin(semaphore.acquire(10, &demand));
    for waiting in [&mut first, &mut raised, &mut wanted] {
        assert!(waiting.now_or_never().is_none());
    }
    assert!(semaphore.is_full());
    late.raise();
    drop(all);
    assert!((&mut first).now_or_never().is_none() && (&mut wanted).now_or_never().is_none());
    drop(raised.await);
    assert!((&mut first).now_or_never().is_none());
    drop(wanted.await);
    first.await;
    // A demand that fits passes a heavier prefetch that waits for more.
    let half = semaphore.acquire(5, &demand).await;
    let mut heavy = Box::pin(semaphore.acquire(10, &early));
    assert!((&mut heavy).now_or_never().is_none());
    drop(semaphore.acquire(5, &demand).await);
    drop(half);
    heavy.await;
}

#[tokio::test]
async fn the_next_is_served_when_the_first_leaves_or_another_is_raised() {
    let (semaphore, demand) = (PrioritySemaphore::new(10), Urgency::demand());
    let some = semaphore.acquire(6, &demand).await;
    let mut heavy = Box::pin(semaphore.acquire(8, &demand));
    let mut light = Box::pin(semaphore.acquire(4, &demand));
    assert!((&mut heavy).now_or_never().is_none() && (&mut light).now_or_never().is_none());
    drop(heavy);
    drop(light.now_or_never().expect("it is the first"));
    let (early, late) = (Urgency::prefetch(), Urgency::prefetch());
    let mut heavy = Box::pin(semaphore.acquire(8, &early));
    let mut light = Box::pin(semaphore.acquire(4, &late));
    assert!((&mut heavy).now_or_never().is_none() && (&mut light).now_or_never().is_none());
    late.raise();
    let light = light.now_or_never().expect("it goes first");
    drop((some, light));
    drop(heavy.now_or_never().expect("all is free"));
    assert_eq!((semaphore.used(), semaphore.is_short()), (0, false));
}

#[tokio::test]
async fn a_permit_heavier_than_the_limit_is_alone() {
    let (semaphore, demand) = (PrioritySemaphore::new(10), Urgency::demand());
    let mut a = semaphore.acquire(3, &demand).await;
    let mut huge = Box::pin(semaphore.acquire(1000, &demand));
    assert!((&mut huge).now_or_never().is_none());
    a.resize(1);
    assert!((&mut huge).now_or_never().is_none());
    drop(a);
    let huge = huge.await;
    assert_eq!(semaphore.used(), 1000);
    let more = semaphore.acquire_now(5);
    drop(huge);
    assert_eq!(semaphore.used(), 5);
    drop(more);
    assert_eq!((semaphore.used(), semaphore.is_short()), (0, false));
}

#[tokio::test]
async fn a_permit_that_grows_is_counted_and_one_that_shrinks_serves_the_next() {
    let (semaphore, demand) = (PrioritySemaphore::new(10), Urgency::demand());
    let mut a = semaphore.acquire(3, &demand).await;
    a.resize(12);
    assert_eq!(semaphore.used(), 12);
    let mut waiting = Box::pin(semaphore.acquire(4, &demand));
    assert!(semaphore.try_acquire(1).is_none() && (&mut waiting).now_or_never().is_none());
    a.resize(6);
    let granted = waiting.await;
    assert_eq!((granted.weight(), semaphore.used()), (4, 10));
    drop((a, granted));
    assert_eq!(semaphore.used(), 0);
}

#[tokio::test]
async fn cancelled_waiters_leave_nothing_behind() {
    let (semaphore, demand) = (PrioritySemaphore::new(10), Urgency::demand());
    let all = semaphore.acquire(10, &demand).await;
    for _ in 0..100_000 {
        assert!(semaphore.acquire(10, &demand).now_or_never().is_none());
    }
    assert!(!semaphore.is_short());
    let mut granted = Box::pin(semaphore.acquire(4, &demand));
    assert!((&mut granted).now_or_never().is_none());
    drop(all);
    assert_eq!(semaphore.used(), 4);
    // Cancelled after the grant, before it was noticed.
    drop(granted);
    assert!(semaphore.try_acquire(10).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_the_limit_at_once() {
    let semaphore = PrioritySemaphore::new(4);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let work = (0..200).map(|i| {
        let (semaphore, now, most) = (semaphore.clone(), now.clone(), most.clone());
        tokio::spawn(async move {
            let _permit = semaphore.acquire(1, &Urgency::demand()).await;
            most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::task::yield_now().await;
            now.fetch_sub(1, SeqCst);
            if i == 100 {
                semaphore.set_limit(2);
            }
        })
    });
    futures::future::join_all(work).await;
    assert!((1..=4).contains(&most.load(SeqCst)));
}
