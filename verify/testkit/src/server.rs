//! The embedded DynamoDB behind HTTP, and other services of AWS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use weirgate_local::Server;

use crate::Dynamo;

/// Variables that the SDK reads, beside the keys and the region.
pub const AWS_VARIABLES: [&str; 10] = [
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_DYNAMODB",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_SESSION_TOKEN",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

/// Serves the database from a thread of its own until the process ends; says where.
pub fn serve(dynamo: &Dynamo) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let server = Server::start(listener, dynamo.db(), vec![]).expect("a thread starts");
    server.detach()
}

/// Serves the requests that the code of Weirgate sends, with the faults of the database.
pub fn serve_with_faults(dynamo: &Dynamo) -> String {
    let dynamo = dynamo.clone();
    serve_json(move |operation, request| dynamo.told(operation, request))
}

/// Serves a JSON protocol of AWS until the process ends; says where. `answer` gets an operation and
/// its request, and returns a status and a body.
pub fn serve_json(
    answer: impl Fn(&str, &Value) -> (u16, String) + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = Arc::clone(&answer);
            // A client that goes away during the answer has its own reasons.
            std::thread::spawn(move || stream.and_then(|stream| answer_once(stream, &*answer)));
        }
    });
    url
}

fn answer_once(
    stream: TcpStream,
    answer: &dyn Fn(&str, &Value) -> (u16, String),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut operation, mut line) = (0, String::new(), String::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some((name, value)) = line.trim_end().split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap_or_default(),
                "x-amz-target" => {
                    value.rsplit('.').next().unwrap_or_default().clone_into(&mut operation)
                }
                _ => {}
            }
        }
        line.clear();
    }
    // A connection that was opened ahead, and is not used.
    if operation.is_empty() {
        return Ok(());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let (status, body) = answer(&operation, &serde_json::from_slice(&body).unwrap_or_default());
    let length = body.len();
    let head = "content-type: application/x-amz-json-1.0\r\nconnection: close";
    let text = format!("HTTP/1.1 {status} OK\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}");
    reader.get_mut().write_all(text.as_bytes())
}

/// Sends one request, of this line with these fields, and returns the status and the body of its answer.
pub fn ask(address: &str, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(300))).expect("it is a time");
    let length = body.len();
    let text = format!("{head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is answered");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    (status.expect("a status"), body.to_owned())
}

/// Returns a port of 127.0.0.1 that is free, for a process that cannot choose one itself.
///
/// It is below 32768, from where the system chooses ports: no listener of another test gets it
/// between now and its use.
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let ports = (0..COUNT).map(|_| {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        // Processes begin at different ones.
        let at = std::process::id().wrapping_mul(97).wrapping_add(tried) % COUNT;
        u16::try_from(FIRST + at).expect("a port is below 65536")
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let mut free = ports.filter(is_free);
    free.next().expect("a port is free")
}
