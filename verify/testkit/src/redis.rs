//! A redis-server of a test's own, or three in a cluster.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Temporary;
use crate::server::free_port;

/// Longest time until a cluster has formed.
const BOUND: Duration = Duration::from_secs(60);

/// A redis-server on a free port of this machine, with nothing on disk, until it is dropped.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    port: u16,
}

impl RedisServer {
    /// Starts one.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts one with more arguments.
    #[must_use]
    pub fn with(arguments: &[&str]) -> Self {
        Self::on(free_port(), arguments)
    }

    fn on(port: u16, arguments: &[&str]) -> Self {
        let started = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn();
        let mut process = started.unwrap_or_else(|error| {
            panic!("redis-server does not start ({error}): run `make packages-redis`")
        });
        let output = process.stdout.take().expect("it is piped");
        let lines = BufReader::new(output).lines().map_while(Result::ok);
        let is_ready = |line: &String| line.contains("Ready to accept connections");
        let is_up = lines.into_iter().any(|line| is_ready(&line));
        let server = Self { process, port };
        assert!(is_up, "redis-server ended at port {port}");
        server
    }

    /// Returns the port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Kills it, and starts an empty one on its port.
    pub fn replace(&mut self) {
        self.kill();
        *self = Self::on(self.port, &[]);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn node(bus: &str, folder: &Temporary) -> RedisServer {
    let (nodes, dir) = (format!("nodes-{bus}.conf"), folder.path());
    RedisServer::with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-config-file",
        &nodes,
        "--cluster-port",
        bus,
        "--dir",
        dir,
        "--dbfilename",
        &format!("{bus}.rdb"),
        "--repl-diskless-sync-delay",
        "0",
    ])
}

fn until(is_done: impl Fn() -> bool) {
    let end = Instant::now() + BOUND;
    while !is_done() {
        assert!(Instant::now() < end, "the cluster does not form");
        std::thread::yield_now();
    }
}

/// A cluster of three servers, each with a third of the slots.
#[derive(Debug)]
pub struct RedisCluster {
    // Dropped before their folder.
    nodes: Vec<RedisServer>,
    folder: Temporary,
}

impl RedisCluster {
    /// Starts one.
    #[must_use]
    pub fn start() -> Self {
        let folder = Temporary::folder();
        let buses: Vec<_> = (0..3).map(|_| free_port().to_string()).collect();
        let node = |bus: &String| node(bus, &folder);
        let nodes: Vec<_> = buses.iter().map(node).collect();
        let cluster = Self { nodes, folder };
        let thirds = [["0", "5460"], ["5461", "10922"], ["10923", "16383"]];
        for (at, [first, last]) in thirds.into_iter().enumerate() {
            let epoch = (at + 1).to_string();
            cluster.run(at, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            cluster.run(at, &["CLUSTER", "ADDSLOTSRANGE", first, last]);
        }
        for (node, bus) in cluster.nodes.iter().zip(&buses).skip(1) {
            let port = node.port().to_string();
            cluster.run(0, &["CLUSTER", "MEET", "127.0.0.1", &port, bus]);
        }
        until(|| (0..3).all(|at| cluster.is_whole(at)));
        cluster
    }

    fn is_whole(&self, at: usize) -> bool {
        let (info, all) = (self.run(at, &["CLUSTER", "INFO"]), self.nodes.len());
        let known = format!("cluster_known_nodes:{all}\r");
        info.contains("cluster_state:ok") && format!("{info}\r").contains(&known)
    }

    /// Adds a replica of a node as the last one, which has all that the node has.
    pub fn add_replica(&mut self, of: usize) {
        let bus = free_port().to_string();
        self.nodes.push(node(&bus, &self.folder));
        let at = self.nodes.len() - 1;
        let port = self.nodes[at].port().to_string();
        self.run(of, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        until(|| (0..=at).all(|at| self.is_whole(at)));
        let id = self.run(of, &["CLUSTER", "MYID"]);
        assert_eq!(self.run(at, &["CLUSTER", "REPLICATE", &id]), "OK");
        self.await_replica(of);
    }

    /// Waits until the replica of a node has all its writes.
    pub fn await_replica(&self, of: usize) {
        until(|| {
            let state = self.run(of, &["INFO", "replication"]);
            let offset = |name: &str| {
                let at = state.find(name)? + name.len();
                let digits = state[at..].split(|c: char| !c.is_ascii_digit()).next();
                digits.map(str::to_owned)
            };
            state.contains("state=online") && offset(",offset=") == offset("master_repl_offset:")
        });
    }

    /// Kills a node.
    pub fn kill(&mut self, at: usize) {
        self.nodes[at].kill();
    }

    /// Kills a node, and lets another one, its replica, take its place.
    pub fn fail_over(&mut self, dead: usize, replica: usize) {
        self.kill(dead);
        assert_eq!(self.run(replica, &["CLUSTER", "FAILOVER", "TAKEOVER"]), "OK");
    }

    /// Returns the nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Runs a command on a node, and returns its answer in lines.
    pub fn run(&self, at: usize, words: &[&str]) -> String {
        let port = self.nodes[at].port().to_string();
        let run = Command::new("redis-cli").args(["-p", &port]).args(words).output();
        let run = run.expect("redis-cli is there");
        let text = String::from_utf8(run.stdout).expect("UTF-8");
        assert!(!text.starts_with("ERR"), "{words:?}: {text}");
        text.trim().to_owned()
    }

    /// Moves a slot with its keys from one node to another.
    pub fn move_slot(&self, slot: &str, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.end_move(slot, from, to);
    }

    fn set_slot(&self, at: usize, slot: &str, words: &[&str]) {
        let all = [&["CLUSTER", "SETSLOT", slot], words].concat();
        assert_eq!(self.run(at, &all), "OK");
    }

    /// Begins to move a slot, and moves no key yet.
    pub fn begin_move(&self, slot: &str, from: usize, to: usize) {
        let id = |at| self.run(at, &["CLUSTER", "MYID"]);
        self.set_slot(to, slot, &["IMPORTING", &id(from)]);
        self.set_slot(from, slot, &["MIGRATING", &id(to)]);
    }

    /// Moves keys of a slot that moves.
    pub fn move_keys(&self, from: usize, to: usize, keys: &[&str]) {
        let port = self.nodes[to].port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        assert_eq!(self.run(from, &[&migrate, keys].concat()), "OK");
    }

    /// Moves the keys that are left of a slot, and ends its move.
    pub fn end_move(&self, slot: &str, from: usize, to: usize) {
        loop {
            let keys = self.run(from, &["CLUSTER", "GETKEYSINSLOT", slot, "10"]);
            let keys: Vec<_> = keys.lines().collect();
            if keys.is_empty() {
                break;
            }
            self.move_keys(from, to, &keys);
        }
        let target = self.run(to, &["CLUSTER", "MYID"]);
        for at in [to, from, 3 - from - to] {
            self.set_slot(at, slot, &["NODE", &target]);
        }
    }
}
