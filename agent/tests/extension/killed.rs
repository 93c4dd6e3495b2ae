//! An environment that dies at any moment.

use serde_json::json;
use weirgate::{ConnectOptions, Limit, RateLimiter};

use crate::lambda::{Lambda, acquire, database};

#[test]
fn killed_at_any_moment_it_holds_no_slot_without_a_lease_and_none_twice() {
    let endpoint = database();
    let variables = [
        ("WEIRGATE_TABLE", "weirgate"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
    ];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let connection = ConnectOptions {
        local_endpoint: Some(endpoint.clone()),
        ..ConnectOptions::default()
    };
    let limiter = RateLimiter::builder("weirgate").connection(connection);
    let limiter = runtime.block_on(limiter.build()).unwrap();
    let mut answered = 0;
    for round in 0..12_u32 {
        let mut lambda = Lambda::start(&variables).ready();
        // Views and connections are there, then three requests are under way when it is killed.
        let _ = lambda.slots();
        let mut requests = vec![];
        for _ in 0..3 {
            requests.push(lambda.post_in_background(&acquire(1)));
        }
        for _ in 0..round * 200 {
            std::thread::yield_now();
        }
        lambda.process.kill().unwrap();
        lambda.process.wait().unwrap();
        let grants = requests
            .into_iter()
            .filter_map(|request| request.join().unwrap());
        let grants: Vec<_> = grants.filter(|(status, _)| *status == 200).collect();
        answered += grants.len();

        // What the table says is held is exactly what leases hold, so all of it returns by their
        // expiry, and at least what callers were told.
        let (held, leased) = runtime.block_on(async {
            let limits = [Limit::concurrent("slots", 20).unwrap()];
            let balances = limiter.peek("e", "r").limits(&limits).send().await.unwrap();
            let held = 20 - balances.limits[0].available.whole_tokens();
            let leases = limiter.leases("e", "r").await.unwrap().items;
            let tokens = leases.iter().flat_map(|lease| lease.tokens.values());
            (
                held,
                tokens.map(|tokens| tokens.whole_tokens()).sum::<i64>(),
            )
        });
        assert_eq!(held, leased, "round {round}");
        assert!(
            held >= i64::try_from(grants.len()).unwrap(),
            "round {round}: {held}"
        );
        assert!(held <= 3, "round {round}: {held}");
        runtime.block_on(async {
            for lease in limiter.leases("e", "r").await.unwrap().items {
                assert!(limiter.release_lease("e", "r", &lease.id).await.unwrap());
            }
        });
    }
    println!("{}", json!({"answered": answered}));
}
