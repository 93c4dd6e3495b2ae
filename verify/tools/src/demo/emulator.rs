//! The process of MiniStack.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::account::account;

pub(super) fn free_port(wanted: Option<u16>) -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", wanted.unwrap_or(0)));
    let bound = listener.and_then(|listener| listener.local_addr());
    bound
        .map(|address| address.port())
        .map_err(|error| match wanted {
            Some(port) => format!(
                "port {port} of 127.0.0.1 is not free ({error}): choose another with DEMO_PORT"
            ),
            None => format!("no port of 127.0.0.1 is free: {error}"),
        })
}

pub(super) fn start(
    ministack: &Path,
    scratch: &Path,
    port: u16,
    endpoint: &str,
) -> Result<Child, String> {
    let log = std::fs::File::create(scratch.join("ministack.log"));
    let log = log.map_err(|error| format!("{} cannot be written: {error}", scratch.display()))?;
    let errors = log
        .try_clone()
        .map_err(|error| format!("{} cannot be written: {error}", scratch.display()))?;
    Command::new(ministack)
        // The functions inherit this environment whole: nothing of the user's own may leak into it.
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("HOME", scratch)
        .env("TMPDIR", scratch)
        .env("GATEWAY_PORT", port.to_string())
        .env("BIND_HOST", "127.0.0.1")
        .env("LOG_LEVEL", "INFO")
        // Roles are enforced: a permission that the template forgot fails here as it would on AWS.
        .env("AUTH", "true")
        .envs(account(endpoint))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", ministack.display()))
}

pub(super) async fn is_up(port: u16) -> bool {
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream
            .write_all(b"GET /_ministack/health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer.ends_with(b"200"))
    };
    tokio::time::timeout(Duration::from_secs(1), ask)
        .await
        .is_ok_and(|answer| answer.unwrap_or(false))
}
