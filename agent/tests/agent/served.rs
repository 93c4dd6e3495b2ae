//! The API in this process, on a DynamoDB with faults or a latency.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use weirgate::{Builder, RateLimiter};
use weirgate_agent::decide::Decider;
use weirgate_agent::http::{Address, Api, Bounds, Health, Server};
use weirgate_testkit::{Dynamo, Limits, Partitions};

use crate::fixtures::{Answer, Client};

/// The API, and its table.
pub struct Served {
    pub runtime: Runtime,
    pub dynamo: Dynamo,
    pub decider: Arc<Decider>,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves the API of a limiter with these settings, whose table answers after `latency`. At its
    /// end it drops the requests in flight at once.
    pub fn new(latency: Duration, settings: impl FnOnce(Builder) -> Builder) -> Self {
        let runtime = RuntimeBuilder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (stop, stopped) = oneshot::channel();
        let (dynamo, decider, address, serving) = runtime.block_on(async {
            let dynamo = Dynamo::new().await;
            let limits = Limits {
                latency: latency..=latency,
                ..Limits::default()
            };
            let table = Partitions::over(dynamo.clone(), limits, 1).table().await;
            let limiter = settings(RateLimiter::builder("weirgate").table(table));
            let limiter = limiter.build().await.unwrap();
            let any = Address::Tcp(([127, 0, 0, 1], 0).into());
            let bounds = Bounds {
                max_connections: 10,
                grace: Duration::ZERO,
            };
            let server = Server::bind(&[any], bounds).await.unwrap();
            let [Address::Tcp(address)] = server.addresses()[..] else {
                panic!("one address");
            };
            let decider = Arc::new(Decider::new(limiter, 10));
            let api = Api::new(Arc::clone(&decider), None, Arc::new(Health::default()));
            let serving = tokio::spawn(server.serve(api, async {
                let _ = stopped.await;
            }));
            (dynamo, decider, address, serving)
        });
        Self {
            runtime,
            dynamo,
            decider,
            address,
            stop: Some(stop),
            serving: Some(serving),
        }
    }

    pub fn connect(&self) -> Client {
        Client::to(TcpStream::connect(self.address).unwrap())
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.connect().post(path, body)
    }

    /// Stops the server, and waits until it has.
    pub fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.runtime.block_on(self.serving.take().unwrap()).unwrap();
    }
}
