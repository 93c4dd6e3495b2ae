//! Tokens of grants.

use tokio::runtime::{Builder, Runtime};
use weirgate::testing::TestTable;
use weirgate::{EpochMillis, Error, RateLimiter};
use weirgate_store::base64;

/// When the tokens of the corpus were taken: a lease that ends much later is refused.
const TAKEN_AT: EpochMillis = EpochMillis(1_795_197_600_000);

thread_local! {
    /// A limiter without a network: restoring sends nothing.
    static LIMITER: (Runtime, RateLimiter) = {
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let limiter = runtime.block_on(async { TestTable::starting_at(TAKEN_AT).limiter().await });
        (runtime, limiter)
    };
}

/// Restores a grant from a token whose JSON is these bytes, and from these bytes as a token.
pub fn grant_token(bytes: &[u8]) {
    LIMITER.with(|(runtime, limiter)| {
        let _entered = runtime.enter();
        let restore = |token: &str| match limiter.restore_grant(token) {
            Ok(grant) => Some(grant),
            Err(Error::Invalid(text)) if text.contains("grant token") || text.contains('"') => None,
            Err(error) => panic!("{error}"),
        };
        let _ = restore(&String::from_utf8_lossy(bytes));
        if let Some(grant) = restore(&base64::encode(bytes)) {
            let (lease, until) = (grant.lease_id().map(str::to_owned), grant.expires_at());
            let token = grant.into_token();
            let again = restore(&token).expect("the token of a grant");
            assert_eq!((again.lease_id().map(str::to_owned), again.expires_at()), (lease, until));
            assert_eq!(again.into_token(), token);
        }
    });
}
