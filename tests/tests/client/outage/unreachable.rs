//! What a connection that was never made, or that was lost, means for a write: over real sockets,
//! by the one constructor.

use std::io::Read;
use std::net::TcpListener;

use weirgate_store::{ConnectOptions, ErrorKind, StoreError, Table, connect};

async fn failure(endpoint: &str) -> StoreError {
    let connection =
        ConnectOptions { local_endpoint: Some(endpoint.to_owned()), ..ConnectOptions::default() };
    Table::new(connect(connection).await, "limits").warm().await.expect_err("nothing answers there")
}

/// An endpoint on this machine without a listener.
fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn what_was_never_sent_is_certainly_not_applied() {
    for endpoint in [&closed_port(), "http://nowhere.invalid:8000"] {
        let error = failure(endpoint).await;
        assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
        assert!(error.kind.is_transient() && error.kind.was_not_applied());
        assert!(
            error.to_string().contains(r#"table "limits": no connection, nothing was sent"#),
            "{error}"
        );
    }
}

/// The handshake of TLS is part of making the connection: a server that speaks something else was
/// sent no request.
#[tokio::test]
async fn a_connection_lost_before_the_request_is_told_from_one_lost_after() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.read(&mut [0; 4096]));
        }
    });
    assert_eq!(failure(&format!("https://{at}")).await.kind, ErrorKind::Unreachable);
    let lost = failure(&format!("http://{at}")).await;
    assert_eq!(lost.kind, ErrorKind::Unconfirmed, "it may have been read: {lost}");
}
