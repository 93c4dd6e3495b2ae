//! Credentials whose source takes longer than an attempt of a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, SharedCredentialsProvider, future};
use tokio::sync::watch;
use tokio::time::timeout;
use weirgate_shared::exact_span;

/// Longest time of a load, and longest time that its credentials are kept for a request.
const LONGEST: Duration = Duration::from_secs(30);

/// Outcome of a load, once it has one.
type Outcome = Option<Result<Credentials, Arc<CredentialsError>>>;

/// Loads credentials in a task, for all requests that wait for them. The SDK ends a load with the
/// attempt that began it. A source that takes longer, as one that asks its user, would begin again
/// with each attempt.
#[derive(Debug)]
pub(crate) struct CredentialsLoader {
    source: SharedCredentialsProvider,
    /// Longest wait of a request.
    within: Duration,
    /// Load whose outcome no request has yet.
    load: Mutex<Option<watch::Receiver<Outcome>>>,
}

/// Error of a load, for one of several requests.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct LoadError(Arc<CredentialsError>);

impl CredentialsLoader {
    /// Returns the loader for requests whose attempts take this long at most.
    pub(crate) fn new(source: SharedCredentialsProvider, attempt: Duration) -> Self {
        // The wait ends before the attempt does, whose error would not name the credentials.
        Self { source, within: attempt / 10 * 9, load: Mutex::default() }
    }

    async fn loaded(&self) -> provider::Result {
        let mut load = self.under_way();
        let outcome = timeout(self.within, load.wait_for(Option::is_some)).await;
        match outcome.map(|outcome| outcome.ok().and_then(|outcome| outcome.clone())) {
            Ok(Some(outcome)) => {
                self.take(&load);
                outcome.map_err(|error| copy(&error))
            }
            Ok(None) => Err(CredentialsError::provider_error(
                "the runtime that loaded credentials ended; ask again",
            )),
            Err(_) => Err(CredentialsError::provider_error(format!(
                "credentials were not loaded within {}, and the load goes on; ask again",
                exact_span(self.within)
            ))),
        }
    }

    /// Returns the load that is under way, or begins one.
    fn under_way(&self) -> watch::Receiver<Outcome> {
        let mut load = self.current();
        // A closed one has failed, has ended with its runtime, or has credentials that are too old.
        if let Some(load) = load.as_ref().filter(|load| !load.is_closed()) {
            return load.clone();
        }
        let (send, new) = watch::channel(None);
        let source = self.source.clone();
        tokio::spawn(async move {
            let loaded = timeout(LONGEST, source.provide_credentials()).await;
            let loaded =
                loaded.unwrap_or_else(|_| Err(CredentialsError::provider_timed_out(LONGEST)));
            let is_loaded = loaded.is_ok();
            send.send_replace(Some(loaded.map_err(Arc::new)));
            if is_loaded {
                // The requests that waited may have ended, so a later one takes them.
                let _ = timeout(LONGEST, send.closed()).await;
            }
        });
        *load = Some(new.clone());
        new
    }

    /// Forgets a load: the SDK keeps its credentials, and asks again when they expire.
    fn take(&self, taken: &watch::Receiver<Outcome>) {
        let mut load = self.current();
        if load.as_ref().is_some_and(|load| load.same_channel(taken)) {
            *load = None;
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<watch::Receiver<Outcome>>> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProvideCredentials for CredentialsLoader {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.loaded())
    }
}

/// Returns an error of the same variant, by which it is classified.
fn copy(error: &Arc<CredentialsError>) -> CredentialsError {
    let source = LoadError(Arc::clone(error));
    match &**error {
        CredentialsError::CredentialsNotLoaded(_) => CredentialsError::not_loaded(source),
        CredentialsError::InvalidConfiguration(_) => {
            CredentialsError::invalid_configuration(source)
        }
        CredentialsError::ProviderTimedOut(after) => {
            CredentialsError::provider_timed_out(after.timeout_duration())
        }
        CredentialsError::ProviderError(_) => CredentialsError::provider_error(source),
        _ => CredentialsError::unhandled(source),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::sleep;

    use super::*;
    use crate::chain;

    const ATTEMPT: Duration = Duration::from_secs(3);

    #[derive(Debug, Clone, Default)]
    struct Source {
        takes: Duration,
        is_empty: bool,
        loads: Arc<AtomicUsize>,
    }

    impl Source {
        fn that_takes(seconds: u64) -> Self {
            Self { takes: Duration::from_secs(seconds), ..Self::default() }
        }

        fn loader(&self) -> CredentialsLoader {
            CredentialsLoader::new(SharedCredentialsProvider::new(self.clone()), ATTEMPT)
        }

        fn loads(&self) -> usize {
            self.loads.load(Ordering::SeqCst)
        }
    }

    impl ProvideCredentials for Source {
        fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
        where
            Self: 'a,
        {
            future::ProvideCredentials::new(async move {
                self.loads.fetch_add(1, Ordering::SeqCst);
                sleep(self.takes).await;
                match self.is_empty {
                    true => Err(CredentialsError::not_loaded("no providers in chain")),
                    false => Ok(Credentials::new("id", "secret", None, None, "test")),
                }
            })
        }
    }

    /// Asks as an attempt of the SDK does.
    async fn attempt(loader: &CredentialsLoader) -> provider::Result {
        timeout(ATTEMPT, loader.provide_credentials()).await.expect("it ends before the attempt")
    }

    #[tokio::test(start_paused = true)]
    async fn credentials_that_take_longer_than_an_attempt_are_loaded_once() {
        let source = Source::that_takes(4);
        let loader = source.loader();
        for loads in 1..3 {
            let error = attempt(&loader).await.expect_err("they are not there yet");
            assert!(matches!(error, CredentialsError::ProviderError(_)), "{error:?}");
            assert!(chain(&error).contains("not loaded within 2s700ms"), "{error:?}");
            attempt(&loader).await.expect("the load went on");
            assert_eq!(source.loads(), loads);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_ends_leaves_its_load_to_the_others() {
        let source = Source::that_takes(3);
        let loader = source.loader();
        let cut_off = timeout(Duration::from_secs(1), loader.provide_credentials()).await;
        assert!(cut_off.is_err());
        let (one, other) = tokio::join!(attempt(&loader), attempt(&loader));
        assert!(one.is_ok() && other.is_ok(), "{one:?}, {other:?}");
        assert_eq!(source.loads(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn loaded_credentials_wait_for_the_next_request_for_half_a_minute() {
        for (pause_seconds, expected) in [(25, 1), (60, 2)] {
            let source = Source::that_takes(4);
            let loader = source.loader();
            attempt(&loader).await.expect_err("they are not there yet");
            sleep(Duration::from_secs(pause_seconds)).await;
            assert_eq!(attempt(&loader).await.is_ok(), expected == 1, "{pause_seconds}");
            assert_eq!(source.loads(), expected, "{pause_seconds}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_hangs_ends_and_is_begun_again() {
        let source = Source::that_takes(3_600);
        let loader = source.loader();
        let last = loop {
            match attempt(&loader).await.expect_err("there are none") {
                CredentialsError::ProviderError(_) => assert_eq!(source.loads(), 1),
                last => break last,
            }
        };
        assert!(matches!(last, CredentialsError::ProviderTimedOut(_)), "{last:?}");
        attempt(&loader).await.expect_err("there are none");
        assert_eq!(source.loads(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_keeps_its_meaning_and_is_not_kept() {
        let source = Source { is_empty: true, ..Source::default() };
        let loader = source.loader();
        for loads in 1..3 {
            let error = attempt(&loader).await.expect_err("there are none");
            assert!(matches!(error, CredentialsError::CredentialsNotLoaded(_)), "{error:?}");
            let expected = "the credential provider was not enabled: no providers in chain";
            assert_eq!(chain(&error), expected);
            assert_eq!(source.loads(), loads);
        }
    }

    #[test]
    fn a_load_whose_runtime_ended_is_begun_on_the_next_one() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(true).build().expect("a runtime")
        };
        let source = Source::that_takes(2);
        let loader = source.loader();
        runtime().block_on(async {
            let cut_off = timeout(Duration::from_secs(1), loader.provide_credentials()).await;
            assert!(cut_off.is_err());
        });
        runtime().block_on(attempt(&loader)).expect("it is loaded there");
        assert_eq!(source.loads(), 2);
    }
}
