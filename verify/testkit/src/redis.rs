//! A redis-server of a test's own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::server::free_port;

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
        let port = free_port();
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
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
