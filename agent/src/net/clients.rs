//! The connections of all listeners: how many there are, what they may send, and how they end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::room::{Busy, Place, Room};
use super::stream::Transport;

/// Bytes that may be arriving, or may wait to be taken, at once: 24 MiB.
const ARRIVING: u64 = 24 * 1024 * 1024;

/// One in so many connections may carry many requests at once, because each of them has more buffers.
const ONE_IN: u32 = 32;

/// How much the listeners do at once.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Open connections. Beyond them the one that has waited longest for a request gives way.
    pub max_connections: u32,
    /// Time for requests in flight when the listeners stop.
    pub grace: Duration,
}

/// How far the listeners have stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Not at all.
    No,
    /// Connections finish their requests.
    Finish,
    /// Connections are closed, and their requests dropped.
    Close,
}

/// The connections of all listeners. Clones are the same connections.
#[derive(Debug, Clone)]
pub struct Clients {
    connections: Arc<Room>,
    /// Those of protocols of which few connections are allowed.
    multiplexed: Arc<Room>,
    arriving: Arc<Room>,
    stop: watch::Sender<Stop>,
    bounds: Bounds,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    connections: Arc<Room>,
    arriving: Arc<Room>,
    place: Place,
    of_protocol: Option<Place>,
    gives_way: Arc<Notify>,
    stop: watch::Receiver<Stop>,
}

/// What is spoken on a connection.
pub(crate) trait Protocol: Clone + Send + 'static {
    /// What a connection without room is told.
    const FULL: &'static [u8];
    /// Whether a connection carries many requests at once.
    const IS_MULTIPLEXED: bool;

    /// Serves a connection to its end.
    fn serve<T: Transport>(
        self,
        transport: T,
        client: Arc<Client>,
    ) -> impl Future<Output = ()> + Send;
}

impl Clients {
    /// Creates the connections, of which there are none.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            connections: Room::new(u64::from(bounds.max_connections)),
            multiplexed: Room::new(u64::from((bounds.max_connections / ONE_IN).max(1))),
            arriving: Room::new(ARRIVING),
            stop: watch::Sender::new(Stop::No),
            bounds,
        }
    }

    /// Serves a connection in a task of its own, if there is room.
    pub(super) fn add<T: Transport, P: Protocol>(&self, transport: T, protocol: P) {
        let gives_way = Arc::new(Notify::new());
        let Some(client) = self.client(P::IS_MULTIPLEXED, &gives_way) else {
            transport.write_now(P::FULL);
            return;
        };
        tokio::spawn(serve(transport, protocol, client, gives_way));
    }

    /// Serves a connection to its end.
    pub(crate) async fn serve<T: Transport, P: Protocol>(&self, transport: T, protocol: P) {
        let gives_way = Arc::new(Notify::new());
        if let Some(client) = self.client(P::IS_MULTIPLEXED, &gives_way) {
            serve(transport, protocol, client, gives_way).await;
        }
    }

    fn client(&self, is_multiplexed: bool, gives_way: &Arc<Notify>) -> Option<Client> {
        let of_protocol = match is_multiplexed {
            false => None,
            true => Some(self.multiplexed.enter(1, Arc::clone(gives_way))?),
        };
        let place = self.connections.enter(1, Arc::clone(gives_way))?;
        if let Some(of_protocol) = &of_protocol {
            of_protocol.take_along(&place);
        }
        Some(Client {
            place,
            of_protocol,
            connections: Arc::clone(&self.connections),
            arriving: Arc::clone(&self.arriving),
            gives_way: Arc::clone(gives_way),
            stop: self.stop.subscribe(),
        })
    }

    /// Closes the connection that has waited longest for a request.
    pub(super) fn give_way(&self) {
        self.connections.give_way();
    }

    /// Returns the time for requests in flight when the listeners stop.
    #[must_use]
    pub const fn grace(&self) -> Duration {
        self.bounds.grace
    }

    /// Returns the maximum number of connections.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.bounds.max_connections
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.connections.places()
    }

    /// Lets connections finish their requests, and drops those that are not finished after the time
    /// for it. None may be accepted any more.
    pub async fn end(&self) {
        self.stop.send_replace(Stop::Finish);
        if timeout(self.bounds.grace, self.stop.closed()).await.is_err() {
            let open = self.open();
            tracing::warn!(open, "connections were closed before their requests ended");
            self.stop.send_replace(Stop::Close);
            // What the dropped requests took returns from now on.
            self.stop.closed().await;
        }
    }
}

async fn serve<T: Transport, P: Protocol>(
    transport: T,
    protocol: P,
    client: Client,
    gives_way: Arc<Notify>,
) {
    let mut stop = client.stop.clone();
    tokio::select! {
        () = protocol.serve(transport, Arc::new(client)) => {}
        () = gives_way.notified() => {}
        () = reached(&mut stop, Stop::Close) => {}
    }
}

impl Client {
    /// Keeps the connection while it is served. `None` if it has given way.
    pub(crate) fn busy(&self) -> Option<(Busy<'_>, Option<Busy<'_>>)> {
        let of_protocol = match &self.of_protocol {
            None => None,
            Some(place) => Some(place.busy()?),
        };
        Some((self.place.busy()?, of_protocol))
    }

    /// Returns whether a request that has arrived whole is served.
    pub(crate) fn is_busy(&self) -> bool {
        self.place.is_busy()
    }

    /// Takes room for bytes of this connection. If they give way, so does the connection.
    pub(crate) fn hold(&self, bytes: usize) -> Option<Place> {
        self.arriving.enter(bytes_of(bytes), Arc::clone(&self.gives_way))
    }

    /// Takes room for bytes of one of several requests of this connection, which give way alone.
    pub(crate) fn hold_alone(&self, bytes: usize) -> Option<Place> {
        self.arriving.enter(bytes_of(bytes), Arc::default())
    }

    /// Returns the number of open connections, of all listeners.
    pub(crate) fn open(&self) -> u64 {
        self.connections.places()
    }

    /// Waits until the listeners have stopped so far.
    pub(crate) async fn stopped(&self, how: Stop) {
        reached(&mut self.stop.clone(), how).await;
    }
}

fn bytes_of(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

async fn reached(stop: &mut watch::Receiver<Stop>, how: Stop) {
    if stop.wait_for(|stop| *stop >= how).await.is_err() {
        // Nothing can stop them any more.
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_gave_way_to_one_of_its_protocol_takes_no_room() {
        let clients = Clients::new(Bounds { max_connections: ONE_IN, grace: Duration::ZERO });
        let open = |is_multiplexed| clients.client(is_multiplexed, &Arc::default()).unwrap();
        let other = open(false);
        // As many as there is room for, of which one may be open.
        let all: Vec<_> = (0..ONE_IN).map(|_| open(true)).collect();
        assert_eq!(clients.open(), 2);
        assert!(other.busy().is_some(), "it gave way to those that had given way");
        drop((all, other));
        assert_eq!(clients.open(), 0);
    }
}
