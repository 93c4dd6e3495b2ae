//! DynamoDB's maximum of writes, which the emulator stores and does not keep.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use crate::demo::now;

/// The operations that write.
const WRITES: [&str; 4] = ["UpdateItem", "TransactWriteItems", "PutItem", "DeleteItem"];

/// Passes requests on to the emulator, except for writes above the table's maximum: those are
/// refused as DynamoDB does, and counted. Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Throttle {
    pub(super) endpoint: String,
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    emulator: String,
    /// Writes that are allowed in a second; any number if negative.
    maximum: AtomicI64,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    second: i64,
    writes: i64,
    /// The operation of each refused write.
    refused: Vec<String>,
}

impl Throttle {
    pub(super) async fn to(emulator: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            emulator: emulator.trim_start_matches("http://").to_owned(),
            maximum: AtomicI64::new(-1),
            window: Mutex::default(),
        });
        let serving = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let shared = serving.clone();
                tokio::spawn(async move { shared.serve(caller).await });
            }
        });
        Ok(Self {
            endpoint,
            shared,
            task: task.abort_handle(),
        })
    }

    /// Keeps this maximum from now on; none if it is negative.
    pub(super) fn keep(&self, maximum: i64) {
        self.shared.maximum.store(maximum, Ordering::Relaxed);
    }

    /// Returns the operations of the writes that were refused since the last call.
    pub(super) fn refused(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.window().refused)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn window(&self) -> std::sync::MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request: whichever answers it closes the connection.
    async fn serve(&self, caller: TcpStream) -> std::io::Result<()> {
        let mut caller = BufReader::new(caller);
        let (mut head, mut operation, mut length) = (String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if caller.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            match name.to_ascii_lowercase().as_str() {
                "connection" => continue,
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "x-amz-target" => {
                    operation = value
                        .rsplit('.')
                        .next()
                        .unwrap_or_default()
                        .trim()
                        .to_owned();
                }
                _ => {}
            }
            head += &line;
        }
        let mut body = vec![0; length];
        caller.read_exact(&mut body).await?;
        let mut caller = caller.into_inner();
        if self.refuses(&operation) {
            return caller.write_all(refusal().as_bytes()).await;
        }
        let mut emulator = TcpStream::connect(&self.emulator).await?;
        emulator
            .write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())
            .await?;
        emulator.write_all(&body).await?;
        copy(&mut emulator, &mut caller).await.map(drop)
    }

    fn refuses(&self, operation: &str) -> bool {
        let maximum = self.maximum.load(Ordering::Relaxed);
        if maximum < 0 || !WRITES.contains(&operation) {
            return false;
        }
        let (mut window, second) = (self.window(), now().0.div_euclid(1000));
        if window.second != second {
            (window.second, window.writes) = (second, 0);
        }
        window.writes += 1;
        let is_above = window.writes > maximum;
        if is_above {
            window.refused.push(operation.to_owned());
        }
        is_above
    }
}

/// <https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/throttling-diagnosing.html>
fn refusal() -> String {
    let body = serde_json::json!({
        "__type": "com.amazonaws.dynamodb.v20120810#ThrottlingException",
        "message": "Throughput exceeds the maximum OnDemandThroughput configured on table or index",
        "throttlingReasons": [{"reason": "TableWriteMaxOnDemandThroughputExceeded", "resource": "table"}],
    })
    .to_string();
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/x-amz-json-1.0\r\nx-amzn-requestid: drill\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}
