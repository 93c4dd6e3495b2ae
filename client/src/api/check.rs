//! Checks that the limiter can work.

use weirgate_shared::schema_key;

use super::limiter::RateLimiter;
use crate::config::check_schema;
use crate::values::Error;

impl RateLimiter {
    /// Checks with one read that the table exists, may be read, and has the schema version of this
    /// code. A namespace without any configuration passes.
    ///
    /// # Errors
    /// [`Error::Store`] and [`Error::UnsupportedSchema`]: the reason that the limiter cannot work.
    pub async fn check(&self) -> Result<(), Error> {
        self.session
            .at_home(async {
                let session = &self.session;
                let items = session.read(&[schema_key(&session.namespace)]).await?;
                check_schema(session, items.iter()).map(|_| ())
            })
            .await
    }
}
