//! smoke
#![allow(missing_docs)]
use std::time::Duration;
use weirgate::*;
use weirgate_tests::Dynamo;

#[tokio::test(start_paused = true)]
async fn smoke() {
    let dynamo = Dynamo::new().await;
    let (table, meter) = dynamo.metered().await;
    let clock = FakeClock::at(EpochMillis(1_795_195_341_000));
    let limiter = RateLimiter::builder("x").table(table).clock(clock.clone()).build().await.unwrap();
    let limits = [Limit::per_minute("rpm", 6).unwrap(), Limit::concurrent("slots", 2).unwrap()];
    for i in 0..6 {
        let d = limiter.acquire("e", "r").limits(&limits).take("rpm", 1).send().await.unwrap();
        println!("{i} {} {:?}", d.is_granted(), meter.take());
    }
    for _ in 0..2 {
        let d = limiter.acquire("e", "r").limits(&limits).take("rpm", 1).send().await.unwrap();
        println!("{d:?} {:?}", meter.take());
    }
    let d = limiter
        .acquire("e", "r")
        .limits(&limits)
        .take("rpm", 1)
        .wait_up_to(Duration::from_secs(20))
        .send()
        .await
        .unwrap();
    println!("{} {:?}", d.is_granted(), meter.take());
    let a = limiter
        .acquire("e", "r")
        .limits(&limits)
        .take("slots", 1)
        .lease(Duration::from_secs(30))
        .send()
        .await
        .unwrap()
        .granted()
        .unwrap();
    println!("lease {:?}", meter.take());
    let b = limiter.acquire("e", "r").limits(&limits).take("slots", 1).send().await.unwrap().granted().unwrap();
    println!("lease {:?}", meter.take());
    let c = limiter.acquire("e", "r").limits(&limits).take("slots", 1).send().await.unwrap();
    println!("{c:?} {:?}", meter.take());
    println!("{:?} {:?}", b.release().await, meter.take());
    let c = limiter.acquire("e", "r").limits(&limits).take("slots", 1).send().await.unwrap();
    println!("{} {:?}", c.is_granted(), meter.take());
    std::mem::forget(c);
    tokio::time::advance(Duration::from_secs(31)).await;
    let c2 = limiter.acquire("e", "r").limits(&limits).take("slots", 1).send().await.unwrap();
    println!("{} {:?}", c2.is_granted(), meter.take());
    println!("a release after reclaim: {:?}", a.release().await);
    println!("{:#}", dynamo.item("default/BUCKET#e#r#0", "#STATE"));
    println!("{:?}", limiter.stats());
}
