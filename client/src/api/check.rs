//! Checks that the limiter can work.

use weirgate_shared::schema_key;

use super::limiter::RateLimiter;
use crate::config::check_schema;
use crate::values::Error;

impl RateLimiter {
    /// Creates the limiter's table, for DynamoDB Local and for tests. On AWS the stack's template
    /// creates it, with recovery, alarms and the functions.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), weirgate::Error> {
    /// let connection = weirgate::ConnectOptions {
    ///     local_endpoint: Some("http://127.0.0.1:8000".to_owned()),
    ///     ..weirgate::ConnectOptions::default()
    /// };
    /// let limiter = weirgate::RateLimiter::builder("limits").connection(connection).build().await?;
    /// limiter.create_table().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`] if the table exists already, or DynamoDB refuses.
    pub async fn create_table(&self) -> Result<(), Error> {
        self.session
            .at_home(async { Ok(self.session.table.create().await?) })
            .await
    }

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
