//! What callers count themselves, because the table does not: denials.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Instant;
use weirgate::RateLimiter;

use super::board::{Board, Caller};

/// Time between two reads of the counters.
const EVERY: Duration = Duration::from_secs(5);
/// Time for one of them.
const WITHIN: Duration = Duration::from_secs(3);
/// Size of a text of metrics, at most.
const MOST: usize = 8 * 1024 * 1024;

/// The address of a caller's metrics in the format of Prometheus: `http://127.0.0.1:2774/metrics` for
/// an agent on this machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricsUrl {
    /// Host and port.
    authority: String,
    path: String,
}

/// A text that is no [`MetricsUrl`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "metrics must be http://HOST:PORT/PATH, got {0:?}; those of an agent here are http://127.0.0.1:2774/metrics"
)]
pub struct NotAMetricsUrl(String);

impl FromStr for MetricsUrl {
    type Err = NotAMetricsUrl;

    fn from_str(text: &str) -> Result<Self, NotAMetricsUrl> {
        let not = || NotAMetricsUrl(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| not())?;
        let authority = uri.authority().filter(|at| !at.as_str().contains('@'));
        let (Some("http"), Some(authority)) = (uri.scheme_str(), authority) else {
            return Err(not());
        };
        let port = authority.port_u16().ok_or_else(not)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self {
            authority: format!("{}:{port}", authority.host()),
            path: if path == "/" { "/metrics" } else { path }.to_owned(),
        })
    }
}

/// Sources of counters.
#[derive(Debug)]
pub(crate) struct Callers {
    board: Arc<Board>,
    /// Limiters of this process.
    here: Vec<RateLimiter>,
    urls: BTreeSet<MetricsUrl>,
    /// The last read of each source: of an address, or of this process.
    before: BTreeMap<Option<MetricsUrl>, (Instant, f64)>,
}

impl Callers {
    pub(crate) fn new(board: Arc<Board>, here: Vec<RateLimiter>, urls: Vec<MetricsUrl>) -> Self {
        Self { board, here, urls: urls.into_iter().collect(), before: BTreeMap::new() }
    }

    /// Reads the counters for as long as there are viewers.
    pub(crate) async fn run(mut self) {
        if self.here.is_empty() && self.urls.is_empty() {
            return std::future::pending().await;
        }
        let mut visits = self.board.visits();
        loop {
            visits.borrow_and_update();
            if self.board.viewers() == 0 {
                if visits.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let callers = self.read().await;
            self.board.set_callers(callers);
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn read(&mut self) -> Vec<Caller> {
        let mut callers = vec![];
        if !self.here.is_empty() {
            let denied: u64 = self.here.iter().map(|limiter| limiter.stats().denied).sum();
            let denied = f64::from(u32::try_from(denied).unwrap_or(u32::MAX));
            callers.push(self.caller(None, Ok(denied)));
        }
        for url in self.urls.clone() {
            let read = tokio::time::timeout(WITHIN, denied(&url)).await;
            let read = read.unwrap_or_else(|_| Err("it does not answer".to_owned()));
            callers.push(self.caller(Some(url), read));
        }
        callers
    }

    fn caller(&mut self, source: Option<MetricsUrl>, read: Result<f64, String>) -> Caller {
        let now = Instant::now();
        let name = source.as_ref().map(|url| url.authority.clone());
        let name = name.unwrap_or_else(|| "this process".to_owned());
        let denied = match read {
            Ok(denied) => denied,
            Err(problem) => {
                self.before.remove(&source);
                return Caller {
                    name,
                    denied_per_second: None,
                    denied: None,
                    problem: Some(problem),
                };
            }
        };
        let before = self.before.insert(source, (now, denied));
        // A counter that fell is that of another process.
        let before = before.filter(|(at, before)| *before <= denied && *at < now);
        let per_second = before.map(|(at, before)| (denied - before) / (now - at).as_secs_f64());
        Caller { name, denied_per_second: per_second, denied: Some(denied), problem: None }
    }
}

/// Reads how many acquires a process has denied.
async fn denied(url: &MetricsUrl) -> Result<f64, String> {
    let text = fetch(url).await?;
    sum(&text, "weirgate_denied_total")
        .ok_or_else(|| "it has no metric weirgate_denied_total".to_owned())
}

async fn fetch(url: &MetricsUrl) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(&*url.authority).await;
    let stream = TokioIo::new(stream.map_err(|error| failed(&error))?);
    let (mut sender, connection) =
        http1::handshake(stream).await.map_err(|error| failed(&error))?;
    let request = Request::get(&*url.path)
        .header(HOST, &*url.authority)
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    let answer = async {
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| failed(&error))?;
        if response.status() != StatusCode::OK {
            return Err(format!("it answers with status {}", response.status()));
        }
        let body = Limited::new(response.into_body(), MOST).collect().await;
        let bytes = body.map_err(|error| failed(&error))?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    tokio::pin!(answer);
    tokio::select! {
        text = &mut answer => text,
        // The body may have arrived with the end of the connection.
        _ = connection => answer.await,
    }
}

/// Returns the sum of a metric over its labels; `None` if the text has none.
fn sum(text: &str, metric: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(metric)?;
        let rest = match rest.strip_prefix('{') {
            // A value of a label may have any character but an unescaped quote.
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest,
        };
        let value = rest.strip_prefix(' ')?.split(' ').next()?;
        value.parse::<f64>().ok().filter(|value| value.is_finite())
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_the_sum_over_its_labels() {
        let text = "# HELP weirgate_denied_total Acquires denied.\n\
                    # TYPE weirgate_denied_total counter\n\
                    weirgate_denied_total{a=\"} 9\"} 3\n\
                    weirgate_denied_total{a=\"c\"} 1.5e1 1795219200000\n\
                    weirgate_denied_total_more 7\n\
                    weirgate_local_denied_total 100\n";
        let is = |metric, expected: f64| {
            let sum = sum(text, metric).expect("the text has it");
            assert!((sum - expected).abs() < 1e-9, "{metric}: {sum}");
        };
        is("weirgate_denied_total", 18.0);
        is("weirgate_local_denied_total", 100.0);
        assert_eq!(sum(text, "weirgate_granted_total"), None);
        assert_eq!(sum("weirgate_denied_total NaN\n", "weirgate_denied_total"), None);
    }

    /// Counters of one host and port, which a first read compares with nothing.
    #[test]
    fn a_counter_is_compared_with_itself_alone() {
        let of = |text: &str| text.parse::<MetricsUrl>().unwrap();
        let urls = ["http://h:1", "http://h:1/metrics", "http://h:1/other"].map(of);
        let mut callers = Callers::new(Arc::new(Board::new()), vec![], urls.to_vec());
        assert_eq!(callers.urls.len(), 2, "{callers:?}");
        for (url, denied) in callers.urls.clone().into_iter().zip([10.0, 1000.0]) {
            let caller = callers.caller(Some(url), Ok(denied));
            assert_eq!(caller.denied_per_second, None, "{caller:?}");
        }
    }

    #[test]
    fn metrics_have_an_address_of_http_with_a_port() {
        let of = |text: &str| text.parse::<MetricsUrl>();
        let agent = of("http://127.0.0.1:2774").unwrap();
        assert_eq!((&*agent.authority, &*agent.path), ("127.0.0.1:2774", "/metrics"));
        assert_eq!(of("http://app:3000/a?b").unwrap().path, "/a?b");
        for wrong in
            ["", "127.0.0.1:2774", "https://a:1", "http://a", "http://u@a:1/", "http://a:x"]
        {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.starts_with("metrics must be http://HOST:PORT/PATH"), "{error}");
        }
    }
}
