//! Conditional writes of S3 on a local port, with its failures. `make e2e` has a whole S3.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use weirgate_archiver::Config;

/// Objects by path, and the statuses of the next responses.
#[derive(Debug, Default)]
pub struct Stored {
    pub objects: BTreeMap<String, String>,
    pub writes: usize,
    pub faults: Vec<Fault>,
}

#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Refuses with this status, and writes nothing.
    Status(u16),
    /// Writes, and closes the connection instead of responding.
    LoseAnswer,
}

pub type S3 = Arc<Mutex<Stored>>;

/// Serves an empty bucket until the test ends.
pub async fn serve() -> (S3, Config) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let stored = S3::default();
    let state = Arc::clone(&stored);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, Arc::clone(&state)));
        }
    });
    let config = Config::read(|name| {
        let value = match name {
            "ARCHIVE_BUCKET" => "archive",
            "AWS_ENDPOINT_URL" => &endpoint,
            "AWS_ENDPOINT_URL_S3" | "AWS_SESSION_TOKEN" => "",
            _ => "test",
        };
        Some(value.to_owned())
    });
    (stored, config.unwrap())
}

/// Answers the requests of a connection as S3 does a conditional write.
async fn answer(mut stream: TcpStream, state: S3) {
    let mut read = vec![];
    while let Ok(1..) = stream.read_buf(&mut read).await {
        let text = String::from_utf8(read.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            let found = lines.find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value)
        };
        let length: usize = header("content-length").unwrap().parse().unwrap();
        if body.len() < length {
            continue;
        }
        assert_eq!(header("if-none-match"), Some("*"), "{head}");
        assert!(
            header("authorization").unwrap().contains("if-none-match;"),
            "{head}"
        );
        let path = head.split(' ').nth(1).unwrap().to_owned();
        let status = {
            let mut state = state.lock().unwrap();
            let fault = state.faults.pop();
            match fault {
                Some(Fault::Status(status)) => status,
                _ if state.objects.contains_key(&path) => 412,
                _ => {
                    state.objects.insert(path, body.to_owned());
                    state.writes += 1;
                    if matches!(fault, Some(Fault::LoseAnswer)) {
                        return;
                    }
                    200
                }
            }
        };
        let said = "<Code>Said</Code>";
        let answer = format!(
            "HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n\r\n{said}",
            said.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        read.clear();
    }
}
