//! The embedded DynamoDB behind HTTP, on a thread of its own.

use crate::Dynamo;

/// Serves the database from a thread of its own; says where.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn serve(dynamo: &Dynamo) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    listener
        .set_nonblocking(true)
        .expect("a socket can be asynchronous");
    let db = dynamo.db().clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime starts");
        runtime.block_on(async {
            let listener =
                tokio::net::TcpListener::from_std(listener).expect("the socket is asynchronous");
            dynoxide::server::serve_on(listener, db).await;
        });
    });
    format!("http://{address}")
}
