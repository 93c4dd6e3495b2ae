//! Listens, and serves until it is to stop.

use std::sync::Arc;

use crate::net::{Address, Bounds, Clients, Listener, accept};

use super::connection::Http;
use super::service::Api;

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    clients: Clients,
}

impl Server {
    /// Listens on all addresses.
    ///
    /// # Errors
    /// A sentence that names the address and the remedy.
    pub async fn bind(addresses: &[Address], bounds: Bounds) -> Result<Self, String> {
        let mut listeners = vec![];
        for address in addresses {
            listeners.push(Listener::bind(address, "--listen").await?);
        }
        let clients = Clients::new(bounds);
        Ok(Self { listeners, clients })
    }

    /// Returns where it listens: the ports, if the system chose them.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners
            .iter()
            .filter_map(Listener::address)
            .collect()
    }

    /// Returns the connections, which other listeners may share.
    #[must_use]
    pub const fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Serves until `stop` is done; then accepts no more, finishes the requests in flight, and drops
    /// those that are not finished after the time for it.
    pub async fn serve(self, api: Api, stop: impl Future<Output = ()>) {
        let http = Http(Arc::new(api));
        let accepting = self.listeners.into_iter();
        let accepting =
            accepting.map(|listener| accept(listener, self.clients.clone(), http.clone()));
        let accepting: Vec<_> = accepting.map(tokio::spawn).collect();
        stop.await;
        for task in accepting {
            task.abort();
            // With the task its listener ends, and the file of a Unix socket.
            let _ = task.await;
        }
        self.clients.end().await;
    }
}
