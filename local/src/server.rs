//! The embedded database behind HTTP, on a thread of its own.

use std::io;
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use dynoxide::Database;
use tokio::sync::oneshot;

/// How long requests under way may take once the server stops.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// A server of the embedded database, until it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    endpoint: String,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Serves the database to what connects to `listener`.
    ///
    /// # Errors
    /// If no thread or runtime can be started.
    pub fn start(listener: TcpListener, database: &Database) -> io::Result<Self> {
        let endpoint = format!("http://{}", listener.local_addr()?);
        listener.set_nonblocking(true)?;
        let database = database.clone();
        let (stop, stopped) = oneshot::channel();
        // One thread: requests are handled one after the other anyway, behind the database's lock.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let (stopping, has_stopped) = oneshot::channel();
            let until_stopped = async move {
                let _ = stopped.await;
                let _ = stopping.send(());
            };
            let last_requests = async {
                let _ = has_stopped.await;
                tokio::time::sleep(LAST_REQUESTS).await;
            };
            tokio::select! {
                served = dynoxide::server::serve_with_shutdown(listener, database, until_stopped) =>
                    served.map_err(io::Error::other),
                () = last_requests => Ok(()),
            }
        };
        let thread = std::thread::Builder::new().name("table".to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "the server of the table ended");
            }
        })?;
        Ok(Self {
            endpoint,
            stop,
            thread,
        })
    }

    /// The address, as `http://127.0.0.1:8000`.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Serves until the process ends. Returns the address.
    #[must_use]
    pub fn detach(self) -> String {
        std::mem::forget(self.stop);
        self.endpoint
    }

    /// Stops: no new connections; requests under way have two seconds. Blocks until then.
    pub fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.thread.join();
    }
}
