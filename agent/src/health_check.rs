//! Asks a running agent for its health, for containers without a shell.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use socket2::{SockAddr, Socket, Type};
use weirgate_shared::{exact_span, parse_timeout, reached};

use crate::net::Address;
use crate::options::{addresses, read};

/// Most bytes of an answer that are read.
const MOST: u64 = 64 * 1024;

/// Asks a running agent whether it has reached the table; exits with 1 if not.
#[derive(Debug, Clone, Parser)]
#[command(
    bin_name = "weirgate-agent healthcheck",
    max_term_width = 100,
    after_help = "Example: weirgate-agent healthcheck --listen 127.0.0.1:2774"
)]
pub struct HealthCheck {
    /// Address of the agent, as it was started
    #[arg(long, env = "WEIRGATE_AGENT_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Its Unix socket
    #[arg(long, env = "WEIRGATE_AGENT_UNIX_SOCKET", value_name = "PATH")]
    unix_socket: Option<PathBuf>,
    /// Time allowed for each step of the answer
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = parse_timeout)]
    timeout: Duration,
}

impl HealthCheck {
    /// Reads the arguments, and the variables that are not empty.
    ///
    /// # Errors
    /// What is wrong with them, or the help that they ask for.
    pub fn read(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        read(arguments)
    }

    /// Asks the agent.
    ///
    /// # Errors
    /// A sentence, if there is no answer, or another one than 200.
    pub fn run(&self) -> Result<(), String> {
        for address in addresses(self.listen, self.unix_socket.as_deref()) {
            let answer = self.ask(&address).map_err(|error| self.no_answer(&address, &error))?;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&*answer, ""));
            if !head.starts_with("HTTP/1.1 200 ") {
                let status = head.lines().next().unwrap_or_default();
                return Err(format!("{address}: {status}: {body}"));
            }
        }
        Ok(())
    }

    fn no_answer(&self, address: &Address, error: &io::Error) -> String {
        // A read of a socket says that it would block.
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => format!(
                "{address}: no answer within {}; give more with --timeout, or read the agent's log",
                exact_span(self.timeout)
            ),
            _ => format!("{address}: no answer: {error}; start the agent, or give its address"),
        }
    }

    fn ask(&self, address: &Address) -> io::Result<String> {
        let to = match address {
            Address::Tcp(address) => reached(*address).into(),
            Address::Unix(path) => SockAddr::unix(path)?,
        };
        let socket = Socket::new(to.domain(), Type::STREAM, None)?;
        socket.set_read_timeout(Some(self.timeout))?;
        socket.set_write_timeout(Some(self.timeout))?;
        match address {
            Address::Tcp(_) => socket.connect_timeout(&to, self.timeout)?,
            // Without blocking it would fail at once while others wait to be accepted. The timeout of writes
            // bounds it.
            Address::Unix(_) => socket.connect(&to)?,
        }
        answer(socket)
    }
}

fn answer(mut stream: impl Read + Write) -> io::Result<String> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = vec![];
    stream.take(MOST).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use weirgate_testkit::Temporary;

    use super::*;

    #[test]
    fn an_agent_that_accepts_no_connection_does_not_answer_in_time() {
        let path = Temporary::at("socket");
        let socket = || Socket::new(socket2::Domain::UNIX, Type::STREAM, None).unwrap();
        let (listener, address) = (socket(), SockAddr::unix(&*path).unwrap());
        listener.bind(&address).unwrap();
        listener.listen(0).unwrap();
        // As many as wait to be accepted.
        let waiting: Vec<_> = std::iter::repeat_with(socket)
            .take_while(|one| {
                one.set_nonblocking(true).and_then(|()| one.connect(&address)).is_ok()
            })
            .collect();
        let arguments = ["healthcheck", "--unix-socket", path.path(), "--timeout", "50ms"];
        let refused = HealthCheck::read(arguments).unwrap().run().unwrap_err();
        assert!(
            refused.ends_with(
                "no answer within 50ms; give more with --timeout, or read the agent's log"
            )
        );
        assert!(refused.starts_with("unix:"), "{refused}");
        drop(waiting);
    }
}
